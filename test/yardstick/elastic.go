package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// bringing is a pod that does not fit the cluster's own node, which has one processor.
const bringing = `apiVersion: v1
kind: Pod
metadata: {name: brings}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: "busybox:1.37", command: [echo, up], resources: {requests: {cpu: 1500m}}}
`

// elasticScript starts a cluster in an allocation of one node, and this program beside it. On the
// cluster's host, the folder $dir is before others in PATH.
const elasticScript = `set -eu
PATH=$dir:$PATH "$berth" up $options --image "$image" >&2
eval "$("$berth" up --env)"
$part
"$berth" down >&2
`

// elasticJob runs a part of this program beside a cluster that 'berth up' has started with options.
// It sets values from the JSON object that the part prints.
func (b *bencher) elasticJob(part, options string) (values map[string]float64, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	program, err := filepath.Abs(b.berth)
	if err != nil {
		return nil, err
	}
	image, err := filepath.Abs(b.image)
	if err != nil {
		return nil, err
	}
	dir, err := b.sharedDirectory()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	sbatch, err := exec.LookPath("sbatch")
	if err != nil {
		return nil, err
	}
	spy := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *' --test-only '*) ;; *) date +%%s.%%N >>%s/submitted ;; esac\nexec %s \"$@\"\n", dir, sbatch)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "sbatch"), []byte(spy), 0o755), os.WriteFile(filepath.Join(dir, "pod.yaml"), []byte(bringing), 0o644)); err != nil {
		return nil, err
	}
	command, err := b.asUser("salloc", "-Q", "-N1", "-c1", "--mem=1000", "bash", "-c", elasticScript)
	if err != nil {
		return nil, err
	}
	command.Env = append(command.Env, "berth="+program, "image="+image, "options="+options, "dir="+dir, "IDLE="+b.idle.String(), "part="+fmt.Sprintf(part, self))
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return nil, err
	}
	return values, json.Unmarshal(out, &values)
}

// sharedDirectory creates a folder in the user's home, which all hosts see. The caller removes it.
func (b *bencher) sharedDirectory() (string, error) {
	account, err := user.Current()
	if b.user != "" {
		account, err = user.Lookup(b.user)
	}
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(account.HomeDir, "berth-bench-")
	if err != nil {
		return "", err
	}
	uid, err1 := strconv.Atoi(account.Uid)
	gid, err2 := strconv.Atoi(account.Gid)
	return dir, errors.Join(err1, err2, os.Chown(dir, uid, gid))
}

// elasticPod measures a pod that brings a node, which Slurm gives at once.
func (b *bencher) elasticPod() (map[string]float64, error) {
	return b.elasticJob("%s -elastic", "--elastic=1")
}

// elasticIdle measures an idle cluster with the loop that submits jobs, and one without it.
func (b *bencher) elasticIdle() (map[string]float64, error) {
	const part = `srun --overlap -N1 -n1 --mem=0 %s -roles`
	with, err := b.elasticJob(part, "--elastic=1")
	if err != nil {
		return nil, err
	}
	without, err := b.elasticJob(part, "")
	if err != nil {
		return nil, err
	}
	return map[string]float64{
		"elastic: processor time of the idle loop, % of a core":                   with["loop cpu"],
		"elastic: memory of the idle loop (PSS), MB":                              with["loop memory"],
		"elastic: processor time of an idle berth up, % of a core":                without["cpu"],
		"elastic: processor time of an idle berth up with --elastic, % of a core": with["cpu"],
		"elastic: memory of an idle berth up, MB":                                 without["memory"],
		"elastic: memory of an idle berth up with --elastic, MB":                  with["memory"],
	}, nil
}

// roles prints what the processes of this user on this host use while nothing happens.
func roles() error {
	idle, err := time.ParseDuration(os.Getenv("IDLE"))
	if err != nil {
		return err
	}
	time.Sleep(2 * settle)
	loop := func(pids []int) (found []int) {
		for _, pid := range pids {
			if strings.HasSuffix(name(pid), " elastic-role") {
				found = append(found, pid)
			}
		}
		return found
	}
	before, err := ownProcesses()
	if err != nil {
		return err
	}
	all, own, start := ticks(before), ticks(loop(before)), time.Now()
	time.Sleep(idle)
	after, err := ownProcesses()
	if err != nil {
		return err
	}
	seconds := time.Since(start).Seconds()
	values := map[string]float64{"cpu": float64(ticks(after)-all) / seconds, "loop cpu": float64(ticks(loop(after))-own) / seconds}
	for _, pid := range loop(after) {
		values["loop memory"] += proportional(pid) / 1e6
	}
	values["memory"] = memoryOf(after) / 1e6
	return json.NewEncoder(os.Stdout).Encode(values)
}

// elasticTimes holds the times of events around a pod that brings a node.
type elasticTimes struct{ applied, pending, submitted, ready, output time.Time }

// elastic applies a pod that brings a node, and prints the times between the events.
func elastic() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	config, err := clusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	var at elasticTimes
	// Afterwards, kubectl has what it caches of a server.
	if out, err := exec.CommandContext(ctx, "kubectl", "apply", "--dry-run=server", "-f", filepath.Join(os.Getenv("dir"), "pod.yaml")).CombinedOutput(); err != nil {
		return fmt.Errorf("apply a pod: %w: %s", err, out)
	}
	pods, err := client.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer pods.Stop()
	nodes, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{LabelSelector: "slurm.berth.dev/job!=" + os.Getenv("SLURM_JOB_ID")})
	if err != nil {
		return err
	}
	defer nodes.Stop()
	at.applied = time.Now()
	apply := exec.CommandContext(ctx, "kubectl", "apply", "-f", filepath.Join(os.Getenv("dir"), "pod.yaml"))
	apply.Stderr = os.Stderr
	if err := apply.Start(); err != nil {
		return err
	}
	for ended := false; !ended; {
		select {
		case event := <-pods.ResultChan():
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				return fmt.Errorf("watch the pod: %w", context.Cause(ctx))
			}
			for _, condition := range pod.Status.Conditions {
				if condition.Reason == corev1.PodReasonUnschedulable && at.pending.IsZero() {
					at.pending = time.Now()
				}
			}
			ended = pod.Status.Phase == corev1.PodSucceeded
		case event := <-nodes.ResultChan():
			node, ok := event.Object.(*corev1.Node)
			if !ok {
				return fmt.Errorf("watch the nodes: %w", context.Cause(ctx))
			}
			for _, condition := range node.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue && at.ready.IsZero() {
					at.ready = time.Now()
				}
			}
		}
	}
	if err := apply.Wait(); err != nil {
		return fmt.Errorf("apply a pod: %w", err)
	}
	output, err := client.CoreV1().Pods("default").GetLogs("brings", &corev1.PodLogOptions{Timestamps: true}).DoRaw(ctx)
	if err != nil {
		return err
	}
	// All hosts of a bed have one clock.
	first, _, _ := strings.Cut(string(output), " ")
	if at.output, err = time.Parse(time.RFC3339Nano, first); err != nil {
		return fmt.Errorf("read the time of the output %q: %w", output, err)
	}
	text, err := os.ReadFile(filepath.Join(os.Getenv("dir"), "submitted"))
	if err != nil {
		return err
	}
	submitted, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	if err != nil {
		return fmt.Errorf("read the time of sbatch: %w", err)
	}
	at.submitted = time.UnixMicro(int64(submitted * 1e6))
	return json.NewEncoder(os.Stdout).Encode(at.values())
}

func (at elasticTimes) values() map[string]float64 {
	return map[string]float64{
		"elastic: pod without a node to sbatch, s":      at.submitted.Sub(at.pending).Seconds(),
		"elastic: sbatch to the node Ready, s":          at.ready.Sub(at.submitted).Seconds(),
		"elastic: node Ready to the first output, s":    at.output.Sub(at.ready).Seconds(),
		"elastic: kubectl apply to the first output, s": at.output.Sub(at.applied).Seconds(),
	}
}
