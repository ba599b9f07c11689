package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// Numbers of SlurmJobs whose jobs wait in the queue, and of those whose jobs have ended.
const (
	waitingObjects = 1000
	endedObjects   = 10000
)

// queuePoll is the controller's least time between two calls of squeue.
const queuePoll = 5 * time.Second

// slurmObjects measures the controller of SlurmJobs: the time to submit 1,000 jobs beside a loop of
// sbatch, and its memory and processor time when nothing changes.
func (b *bencher) slurmObjects() (map[string]float64, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	program, err := filepath.Abs(b.berth)
	if err != nil {
		return nil, err
	}
	command, err := b.command("run", "--quiet", "--", "env", "BERTH="+program, "IDLE="+b.idle.String(), self, "-objects")
	if err != nil {
		return nil, err
	}
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return nil, err
	}
	var values map[string]float64
	return values, json.Unmarshal(out, &values)
}

// objectsTrial holds what one measurement of slurmObjects needs.
type objectsTrial struct {
	dir        string // holds the records of jobs, and tools
	objects    dynamic.ResourceInterface
	idle       time.Duration
	controller *exec.Cmd
	values     map[string]float64
}

// objects runs as the command in a berth cluster, and prints the values of slurmObjects.
func objects() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	t := objectsTrial{values: map[string]float64{}}
	if t.dir, err = os.MkdirTemp("/var/tmp", "berth-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(t.dir)
	if t.idle, err = time.ParseDuration(os.Getenv("IDLE")); err != nil {
		return err
	}
	config, err := clusterConfig()
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	t.objects = client.Resource(schema.GroupVersionResource{Group: "wlm.sylabs.io", Version: "v1alpha1", Resource: "slurmjobs"}).Namespace("default")
	setup := exec.CommandContext(ctx, "sh", "-c", `"$BERTH" slurm-jobs setup -n default --user admin --trust-namespace | kubectl apply -f - &&
		kubectl wait --for=condition=Established --timeout=60s crd/slurmjobs.wlm.sylabs.io`)
	if out, err := setup.CombinedOutput(); err != nil {
		return fmt.Errorf("install the definitions: %w: %s", err, out)
	}
	if err := t.serve(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.stop()) }()
	for _, step := range []func(context.Context) error{t.submit, t.loop, t.waiting, t.ended} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(t.values)
}

// serve starts the controller, with a squeue that counts its calls.
func (t *objectsTrial) serve(ctx context.Context) error {
	squeue := fmt.Sprintf("#!/bin/sh\necho >>%s/calls\nexec /usr/bin/squeue \"$@\"\n", t.dir)
	if err := os.WriteFile(filepath.Join(t.dir, "squeue"), []byte(squeue), 0o700); err != nil {
		return err
	}
	t.controller = exec.CommandContext(ctx, os.Getenv("BERTH"), "slurm-jobs", "-n", "default", "--trust-namespace", "--root", t.dir,
		"--state-dir", filepath.Join(t.dir, "state"), "--submit-rate", "100000")
	t.controller.Env = append(os.Environ(), "PATH="+t.dir+":"+os.Getenv("PATH"))
	t.controller.Stderr = os.Stderr
	return t.controller.Start()
}

// stop ends the controller.
func (t *objectsTrial) stop() error {
	if err := t.controller.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	_ = t.controller.Wait() // its exit code is that of the signal
	return nil
}

// create creates objects, whose jobs start after a week.
func (t *objectsTrial) create(ctx context.Context, name string, n int, status map[string]any) error {
	var group errgroup.Group
	group.SetLimit(8)
	for i := range n {
		group.Go(func() error {
			object := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "wlm.sylabs.io/v1alpha1", "kind": "SlurmJob", "metadata": map[string]any{"name": fmt.Sprint(name, "-", i)},
				"spec": map[string]any{"batch": "#!/bin/sh\n#SBATCH --begin=now+7days --mem=10 --output=/dev/null\nsrun hostname\n"},
			}}
			created, err := t.objects.Create(ctx, object, metav1.CreateOptions{})
			if err != nil || status == nil {
				return err
			}
			created.Object["status"] = status
			_, err = t.objects.UpdateStatus(ctx, created, metav1.UpdateOptions{})
			return err
		})
	}
	return group.Wait()
}

// submit measures the time until the jobs of new objects are submitted and released.
func (t *objectsTrial) submit(ctx context.Context) error {
	start := time.Now()
	if err := t.create(ctx, "waiting", waitingObjects, nil); err != nil {
		return err
	}
	for released := 0; released < waitingObjects; {
		time.Sleep(time.Second)
		list, err := t.objects.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		released = 0
		for _, object := range list.Items {
			if done, _, _ := unstructured.NestedBool(object.Object, "status", "released"); done {
				released++
			}
		}
	}
	seconds := time.Since(start).Seconds()
	t.values["submission of 1000 SlurmJobs, s"] = seconds
	calls, err := t.calls()
	t.values["calls of squeue per 5 s during submission"] = float64(calls) / (seconds / queuePoll.Seconds())
	return err
}

// loop measures a loop of sbatch, which submits as many jobs.
func (t *objectsTrial) loop(ctx context.Context) error {
	start := time.Now()
	for range waitingObjects {
		command := exec.CommandContext(ctx, "sbatch", "--begin=now+7days", "--mem=10", "--output=/dev/null", "--job-name=loop", "--wrap=srun hostname")
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("sbatch: %w: %s", err, out)
		}
	}
	t.values["loop of 1000 sbatch, s"] = time.Since(start).Seconds()
	return exec.CommandContext(ctx, "scancel", "--name=loop").Run()
}

// calls returns the number of calls of squeue so far.
func (t *objectsTrial) calls() (int, error) {
	log, err := os.ReadFile(filepath.Join(t.dir, "calls"))
	return strings.Count(string(log), "\n"), err
}

// waiting measures the controller while nothing changes.
func (t *objectsTrial) waiting(context.Context) error {
	time.Sleep(2 * settle)
	return t.measure("with 1000 jobs that wait")
}

// ended measures the controller after a restart, with many objects whose jobs have ended.
func (t *objectsTrial) ended(ctx context.Context) error {
	if err := t.stop(); err != nil {
		return err
	}
	status := map[string]any{"state": "COMPLETED", "status": "Succeeded", "jobID": "1", "released": true, "exitCode": int64(0), "message": "job 1: COMPLETED"}
	if err := t.create(ctx, "ended", endedObjects, status); err != nil {
		return err
	}
	if err := t.serve(ctx); err != nil {
		return err
	}
	time.Sleep(3 * settle)
	return t.measure("with 10000 ended jobs besides")
}

// measure measures memory now, and processor time and calls of squeue for a while. The processor
// time includes the commands of Slurm that the controller runs.
func (t *objectsTrial) measure(when string) error {
	pid := t.controller.Process.Pid
	before, err := t.calls()
	if err != nil {
		return err
	}
	used, start := ticks([]int{pid}), time.Now()
	time.Sleep(t.idle)
	seconds := time.Since(start).Seconds()
	t.values["processor time "+when+", % of a core"] = float64(ticks([]int{pid})-used) / seconds
	after, err := t.calls()
	if err != nil {
		return err
	}
	t.values["calls of squeue per 5 s "+when] = float64(after-before) / (seconds / queuePoll.Seconds())
	t.values["PSS "+when+", MB"] = proportional(pid) / 1e6
	resident, err := residentSize(pid)
	t.values["RSS "+when+", MB"] = resident / 1e6
	return err
}

// residentSize returns the resident size of a process in bytes.
func residentSize(pid int) (float64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(content))
	if len(fields) < 2 {
		return 0, fmt.Errorf("read the memory of process %d: %q", pid, content)
	}
	pages, err := strconv.ParseFloat(fields[1], 64)
	return pages * float64(os.Getpagesize()), err
}
