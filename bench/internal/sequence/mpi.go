package sequence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/bench/internal/record"
)

// initProgram measures only MPI_Init, like osu_init. It prints the slowest rank's time in
// seconds.
const initProgram = `import time, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
start = time.perf_counter()
MPI.Init()
took = MPI.COMM_WORLD.reduce(time.perf_counter() - start, op=MPI.MAX, root=0)
if MPI.COMM_WORLD.rank == 0:
    print("MPI_Init took", took)
MPI.Finalize()
`

// stepsProgram calls a command several times, one after the other, and prints
// the time and the output of each call.
const stepsProgram = `import subprocess, sys, time
for _ in range(int(sys.argv[1])):
    start = time.perf_counter()
    said = subprocess.run(sys.argv[2:], stdout=subprocess.PIPE, check=True, text=True).stdout
    print("step took", time.perf_counter() - start)
    print(said)
`

const python = "/usr/bin/python3"

// yield is the parameter of OpenMPI that makes waiting ranks release the processor. It is
// set on hosts and in pods, because hosts of a bed share cores.
const yield = "mpi_yield_when_idle"

// launch returns the command that starts one copy of a program on each node of the job,
// with the cores that pods would have there.
func (s Spec) launch() ([]string, error) {
	switch s.Parameters["hosts-launcher"] {
	case "srun":
		return slices.Concat([]string{"env", "OMPI_MCA_" + yield + "=1", "srun", "--quiet", "--overlap", "--kill-on-bad-exit", "--mpi=pmix"}, Sized(s.Nodes, s.CPUs), s.Step, s.Through), nil
	case "mpirun":
		if len(s.Step) > 0 {
			return nil, errors.New("mpirun starts no job steps, so options of steps have no effect: set hosts-launcher to srun")
		}
		// By default mpirun starts a daemon on every host of the job.
		return append([]string{"mpirun", "--host", strings.Join(s.Hosts, ",")}, s.ranks()...), nil
	}
	return nil, fmt.Errorf("there is no launcher %q", s.Parameters["hosts-launcher"])
}

// Sized returns the options of srun and sbatch for one task of that many CPUs on each of
// that many nodes.
func Sized(nodes, cpus int) []string {
	n := strconv.Itoa(nodes)
	return []string{"-N" + n, "-n" + n, "--ntasks-per-node=1", "-c" + strconv.Itoa(cpus)}
}

// ranks returns mpirun's options for one process on each node. By default mpirun would bind
// each of two processes to a core, which on the hosts of a bed is the same core.
func (s Spec) ranks() []string {
	return []string{"--map-by", "node", "--bind-to", "none", "--mca", yield, "1", "-n", strconv.Itoa(s.Nodes)}
}

// jobMPI returns the implementation and version of MPI in a plain job, as its mpirun
// reports it. podMPI returns the same for pods. Both return "" if mpirun fails, because
// that does not affect the figures. They run after the measurement, so that they fill no
// cache before it.
func (s Spec) jobMPI(ctx context.Context) string {
	argv := []string{"mpirun", "--version"}
	if s.Parameters["hosts-launcher"] == "srun" {
		argv = slices.Concat([]string{"srun", "--quiet", "--overlap"}, Sized(1, s.CPUs), s.Step, s.Through, argv)
	}
	return firstLine(run(ctx, "", argv...))
}

func (s Spec) podMPI(ctx context.Context, pod string) string {
	return firstLine(s.kubectl(ctx, "", "exec", pod, "--", "mpirun", "--allow-run-as-root", "--version"))
}

func firstLine(text string, err error) string {
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimSpace(line)
}

// mpiSteps measures sequential steps of a program that does MPI_Init, in a plain job.
func mpiSteps(ctx context.Context, s Spec) (Result, error) {
	launch, err := s.launch()
	if err != nil {
		return Result{}, err
	}
	argv := slices.Concat([]string{python, "-c", stepsProgram, s.Parameters["steps"]}, launch, []string{python, "-c", initProgram})
	out, err := run(ctx, "", argv...)
	if err != nil {
		return Result{}, err
	}
	r, err := readSteps(out)
	if err == nil {
		r.MPI = s.jobMPI(ctx)
	}
	return r, err
}

// mpiPods measures the same steps between pods, one on each node, which mpirun starts.
func mpiPods(ctx context.Context, s Spec) (Result, error) {
	first, err := s.mpiWorkers(ctx)
	if err != nil {
		return Result{}, err
	}
	r, err := s.counted(ctx, func() (Result, error) {
		out, err := s.kubectl(ctx, "", slices.Concat([]string{"exec", first, "--", python, "-c", stepsProgram, s.Parameters["steps"]}, s.mpirun(), []string{python, "-c", initProgram})...)
		if err != nil {
			return Result{}, err
		}
		return readSteps(out)
	})
	if err == nil {
		r.MPI = s.podMPI(ctx, first)
	}
	return r, err
}

var (
	tookStep = regexp.MustCompile(`(?m)^step took ([0-9.e-]+)$`)     //nolint:gochecknoglobals // a constant
	tookInit = regexp.MustCompile(`(?m)^MPI_Init took ([0-9.e-]+)$`) //nolint:gochecknoglobals // a constant
)

// readSteps reads the figures from the output of stepsProgram and initProgram.
func readSteps(text string) (r Result, err error) {
	for _, figure := range []struct {
		name    string
		pattern *regexp.Regexp
	}{{"step", tookStep}, {"MPI_Init of the slowest rank", tookInit}} {
		values, err := floats(figure.pattern, text)
		if err != nil || len(values) == 0 {
			return r, errors.Join(fmt.Errorf("there is no time of %s in the output", figure.name), err)
		}
		r.Values = append(r.Values, spread(figure.name, values)...)
	}
	return r, nil
}

// spread returns the median, the shortest and the longest of several times in seconds. It
// sorts values.
func spread(name string, values []float64) (all []record.Value) {
	middle := median(values)
	for _, v := range []struct {
		of    string
		value float64
	}{{"median", middle}, {"shortest", values[0]}, {"longest", values[len(values)-1]}} {
		all = append(all, record.Value{Name: name + ", " + v.of, Unit: "s", Better: "lower", Value: v.value})
	}
	return all
}

// median sorts values and returns their median.
func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// floats returns the number in each match of a pattern, which is its first group.
func floats(pattern *regexp.Regexp, text string) (values []float64, err error) {
	for _, match := range pattern.FindAllStringSubmatch(text, -1) {
		v, err := strconv.ParseFloat(match[1], 64)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}

// workers is the name of the MPI pods.
const workers = "mpi"

// mpirun returns the command that starts a program once in each worker. It runs in a
// separate pod, because a worker would have two names: its own and that in --host.
func (s Spec) mpirun() []string {
	var hosts []string
	for n := range s.Nodes {
		hosts = append(hosts, fmt.Sprintf("%s-%d.%[1]s", workers, n))
	}
	return append([]string{"mpirun", "--allow-run-as-root", "--host", strings.Join(hosts, ",")}, s.ranks()...)
}

// mpiWorkers creates a pod with an ssh server on each node, and a pod that starts programs
// there. It waits until mpirun reaches all workers, and returns the name of the second pod.
// Only this cluster uses the ssh keys.
func (s Spec) mpiWorkers(ctx context.Context) (first string, err error) {
	dir, err := os.MkdirTemp("", "berth-bench-keys-")
	if err != nil {
		return "", fmt.Errorf("make a folder for keys: %w", err)
	}
	defer os.RemoveAll(dir)
	data := map[string]string{}
	for _, name := range []string{"user", "host"} {
		path := filepath.Join(dir, name)
		if _, err := run(ctx, "", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path); err != nil {
			return "", err
		}
		for _, end := range []string{"", ".pub"} {
			text, err := os.ReadFile(path + end)
			if err != nil {
				return "", err
			}
			data[name+end] = string(text)
		}
	}
	data["known_hosts"] = workers + " " + data["host.pub"]
	data["ssh.conf"] = "Host " + workers + "-*\n  User root\n  IdentityFile /keys/user\n  UserKnownHostsFile /keys/known_hosts\n  HostKeyAlias " + workers + "\n  LogLevel ERROR\n"
	data["sshd.conf"] = "HostKey /keys/host\nAuthorizedKeysFile /keys/user.pub\nPermitRootLogin prohibit-password\nPasswordAuthentication no\nUsePAM no\nStrictModes no\n"
	text, err := s.workersText(data)
	if err != nil {
		return "", err
	}
	if _, err := s.kubectl(ctx, text, "apply", "-f", "-"); err != nil {
		return "", err
	}
	if _, err := s.kubectl(ctx, "", "rollout", "status", "statefulset/"+workers, "--timeout="+podTimeout(ctx)); err != nil {
		return "", err
	}
	if _, err := s.kubectl(ctx, "", "wait", "--for=condition=Ready", "pod/"+workers+"-launcher", "--timeout="+podTimeout(ctx)); err != nil {
		return "", err
	}
	first = workers + "-launcher"
	return first, s.answer(ctx, first, time.Minute)
}

// answer waits until mpirun in the pod first reaches all workers: DNS knows their names
// a little later than the pods start. After the limit it returns an error that includes
// the last error of mpirun, but not that of the call that the limit interrupted.
func (s Spec) answer(ctx context.Context, first string, limit time.Duration) (last error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("pods have not come to reach each other within %s", limit))
	defer cancel()
	for {
		_, err := s.kubectl(ctx, "", append([]string{"exec", first, "--"}, append(s.mpirun(), "true")...)...)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), last)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (s Spec) workersText(data map[string]string) (string, error) {
	labels := object{"app": workers}
	node := []object{{"name": "NODE", "valueFrom": object{"fieldRef": object{"fieldPath": "status.hostIP"}}}}
	mounts := []object{
		{"name": "keys", "mountPath": "/keys"},
		{"name": "keys", "mountPath": "/etc/ssh/ssh_config.d/mpi.conf", "subPath": "ssh.conf"},
	}
	volumes := []object{{"name": "keys", "secret": object{"secretName": workers, "defaultMode": 0o400}}}
	encoded, err := json.Marshal(data)
	if err != nil {
		return "", err
	}
	return Encode(
		object{"apiVersion": "v1", "kind": "Secret", "metadata": object{"name": workers}, "stringData": json.RawMessage(encoded)},
		object{
			"apiVersion": "v1", "kind": "Service", "metadata": object{"name": workers},
			"spec": object{"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": true},
		},
		object{
			"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": object{"name": workers},
			"spec": object{
				"serviceName": workers, "replicas": s.Nodes, "podManagementPolicy": "Parallel", "selector": object{"matchLabels": labels},
				"template": object{"metadata": object{"labels": labels}, "spec": object{
					"terminationGracePeriodSeconds": 0,
					"topologySpreadConstraints": []object{{
						"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": object{"matchLabels": labels},
					}},
					"containers": []object{{
						"name": "worker", "env": node, "image": s.Image, "imagePullPolicy": "IfNotPresent", "command": []string{"/usr/sbin/sshd", "-D", "-e", "-f", "/keys/sshd.conf"},
						"readinessProbe": object{"tcpSocket": object{"port": 22}, "periodSeconds": 1},
						"volumeMounts":   mounts,
					}},
					"volumes": volumes,
				}},
			},
		},
		object{
			"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": workers + "-launcher"},
			"spec": object{
				"terminationGracePeriodSeconds": 0, "volumes": volumes,
				"containers": []object{{
					"name": "main", "image": s.Image, "imagePullPolicy": "IfNotPresent", "command": []string{"sleep", "1000000"}, "volumeMounts": mounts,
				}},
			},
		})
}
