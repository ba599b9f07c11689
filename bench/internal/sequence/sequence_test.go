package sequence

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/bench/internal/record"
)

// cluster returns a spec whose kubectl is a script.
func cluster(t *testing.T, script string) Spec {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubectl")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return Spec{Nodes: 2, Image: "i:1", Kubectl: []string{path}, Timeout: time.Minute}
}

// TestRequirements: a check that fails is a no with its reason, and the trial goes on.
func TestRequirements(t *testing.T) {
	t.Setenv("SLURM_JOB_ID", "")
	r, err := requirements(t.Context(), cluster(t, `case "$*" in
exec*index.html) echo it answers ;;
exec*|apply*|rollout*|wait*|delete*) ;;
logs*) printf 'a Job\nno answer\n' ;;
*clusterIP*) echo 10.0.0.1 ;;
*nodeName*) printf 'a p1\na p2\nb p3\n' ;;
*) exit 1 ;;
esac`))
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]record.Value{}
	for _, v := range r.Values {
		if v.Unit != record.Check {
			t.Errorf("%s has the unit %s", v.Name, v.Unit)
		}
		said[v.Name] = v
	}
	for question, yes := range map[string]float64{
		"RQ1 kubectl exec: a command in a pod":                             1,
		"RQ1 kubectl wait and logs: a Job that runs to its end":            1,
		"RQ1 a Service with an address of its own answers by its name":     0,
		"RQ2 the pod's processes are the user's, in the Slurm job":         0,
		"RQ3 pods run on 2 machines at the same time":                      1,
		"RQ1 kubectl apply and rollout status: a Deployment and a Service": 1,
	} {
		if v, is := said[question]; !is || v.Value != yes {
			t.Errorf("%s: %+v", question, v)
		}
	}
	if d := said["RQ1 a Service with an address of its own answers by its name"].Detail; !strings.Contains(d, "no answer") {
		t.Errorf("it does not say why: %q", d)
	}
	if _, is := said["RQ2 nothing was started as root"]; !is {
		t.Error("it does not ask by whom it was started")
	}
	if d := said["RQ3 pods run on 2 machines at the same time"].Detail; d != "a, b" {
		t.Errorf("nodes %q", d)
	}
}

// TestRequirementsWithoutCluster: every answer is no.
func TestRequirementsWithoutCluster(t *testing.T) {
	r, err := requirements(t.Context(), cluster(t, "echo no such host >&2; exit 1\n"))
	if err == nil {
		t.Error("what cannot be removed is no error")
	}
	for _, v := range r.Values {
		if strings.HasPrefix(v.Name, "RQ1") && (v.Value != 0 || !strings.Contains(v.Detail, "no such host")) {
			t.Errorf("%+v", v)
		}
	}
}

// TestRequirementsEnded: an interrupted trial leaves nothing in an existing cluster.
func TestRequirementsEnded(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("it is over"))
	s := cluster(t, `case "$*" in delete*) touch "$(dirname "$0")/deleted" ;; esac`)
	if _, err := requirements(ctx, s); err == nil || !strings.Contains(err.Error(), "it is over") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(s.Kubectl[0]), "deleted")); err != nil {
		t.Error(err)
	}
}

// TestRequirementsGiven: a client cannot find out who started an existing
// cluster.
func TestRequirementsGiven(t *testing.T) {
	s := cluster(t, "")
	s.Given = true
	r, err := requirements(t.Context(), s)
	if err != nil || slices.ContainsFunc(r.Values, func(v record.Value) bool { return strings.Contains(v.Name, "as root") }) {
		t.Errorf("got %+v, %v", r.Values, err)
	}
}

// TestPodTimeoutLeavesTimeForLaterChecks checks that a wait takes only a part of the time.
func TestPodTimeoutLeavesTimeForLaterChecks(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Minute)
	defer cancel()
	if got := podTimeout(ctx); got != "2m0s" {
		t.Errorf("got %s", got)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 0)
	defer cancel()
	if got := podTimeout(ctx); got != "1s" {
		t.Errorf("got %s", got)
	}
}

func TestOfJob(t *testing.T) {
	for cgroup, want := range map[string]string{
		"0::/slurm/job_7/step_0/user": "by their cgroup", "0::/job_77/step_0": "", "0::/": "",
	} {
		if got := ofJob(process{cgroup: cgroup}, "7"); got != want {
			t.Errorf("%s: %q", cgroup, got)
		}
	}
	p := readStatus("Name:\tx\nPPid:\t12\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n")
	if p.uid != 1000 || p.parent != 12 || p.capable {
		t.Errorf("got %+v", p)
	}
	if !readStatus("CapEff:\t00000000a80425fb\n").capable {
		t.Error("capabilities are not seen")
	}
}

func TestMainSaysWhatItCannot(t *testing.T) {
	text, err := json.Marshal(Spec{What: "nothing", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := Main(t.Context(), string(text)); err == nil || !strings.Contains(err.Error(), `no sequence "nothing"`) {
		t.Errorf("got %v", err)
	}
}

// TestAwaitNodes: only nodes that are ready and have no taint count.
func TestAwaitNodes(t *testing.T) {
	text := "a True <none>\nb False NoSchedule\nb True NoSchedule,NoExecute\na True <none>\n"
	if err := awaitNodes(strings.NewReader(text), 2); err == nil {
		t.Error("a node with a taint is taken for one that takes pods")
	}
	if err := awaitNodes(strings.NewReader(text+"b True <none>\n"), 2); err != nil {
		t.Error(err)
	}
	if err := awaitNodes(strings.NewReader(text+"a <none> <none>\nb True PreferNoSchedule\n"), 2); err == nil {
		t.Error("a node that has said nothing is taken for a ready one")
	}
}

// TestNodes: kubectl is ended once it has printed enough.
func TestNodes(t *testing.T) {
	if _, err := nodes(t.Context(), cluster(t, "")); err == nil || !strings.Contains(err.Error(), "before") {
		t.Errorf("what was taken before is not known, and not missed: %v", err)
	}
	// Processor time from before the trial is subtracted.
	t.Setenv(UsageBefore, "-1e9")
	if r, err := nodes(t.Context(), cluster(t, "echo a True '<none>'; echo b True '<none>'; exec sleep 1000\n")); err != nil || r.Values[0].Value < 1e9 {
		t.Errorf("got %+v, %v", r, err)
	}
	t.Setenv(UsageBefore, "0")
	r, err := nodes(t.Context(), cluster(t, "echo a True '<none>'; echo b True '<none>'; exec sleep 1000\n"))
	if err != nil || r.At == 0 || len(r.Values) != 1 || r.Values[0].Value < 0 {
		t.Errorf("got %+v, %v", r, err)
	}
	if _, err := nodes(t.Context(), cluster(t, "echo no such host >&2; exit 1\n")); err == nil || !strings.Contains(err.Error(), "no such host") {
		t.Errorf("got %v", err)
	}
}

// TestReadSteps: figures for the time of a step and of MPI_Init, of all calls.
func TestReadSteps(t *testing.T) {
	r, err := readSteps("step took 0.5\nMPI_Init took 0.125\n\nstep took 1.5\nMPI_Init took 1e-3\n")
	if err != nil || len(r.Values) != 6 || r.Values[0].Value != 1 || r.Values[1].Value != 0.5 || r.Values[5].Value != 0.125 {
		t.Errorf("got %+v, %v", r.Values, err)
	}
	if _, err := readSteps("step took 0.5\n"); err == nil || !strings.Contains(err.Error(), "MPI_Init") {
		t.Errorf("got %v", err)
	}
}

// TestReadHPCC: figures count only if hpcc has verified its results.
func TestReadHPCC(t *testing.T) {
	text := "HPL_Tflops=0.002\nPTRANS_GBs=0.9\nStarSTREAM_Triad=76.2\nMPIFFT_Gflops=0.07\n"
	s := Spec{Nodes: 2, Parameters: map[string]string{"size": "4000"}}
	const cache = 5 << 20 // four of them are less than a vector of 21 MB
	if _, err := s.readHPCC(text+"Success=0\n", cache); err == nil {
		t.Error("wrong results have figures")
	}
	r, err := s.readHPCC(text+"Success=1\n", cache)
	if err != nil || len(r.Values) != 4 || r.Values[0].Value != 2 || r.Values[0].Unit != "Gflop/s" {
		t.Errorf("got %+v, %v", r.Values, err)
	}
	if r, err := s.readHPCC(strings.Replace(text, "0.9", "0", 1)+"Success=1\n", cache); err != nil || len(r.Values) != 3 {
		t.Errorf("what was too short to be timed has a figure: %+v, %v", r.Values, err)
	}
	if _, err := s.readHPCC("Success=1\n", cache); err == nil || strings.Contains(err.Error(), "%!") {
		t.Errorf("a summary without figures: %v", err)
	}
	// A result from the cache is not the speed of memory. A figure that needs slow
	// trials is omitted, because only some trials would have it.
	if r, err := s.readHPCC(text+"Success=1\n", 32<<20); err != nil || len(r.Values) != 3 || r.Values[1].Name != "PTRANS" {
		t.Errorf("got %+v, %v", r.Values, err)
	}
	s.Parameters["size"] = "1000"
	if r, err := s.readHPCC(text+"Success=1\n", cache); err != nil || len(r.Values) != 2 || r.Values[1].Name != "MPIFFT" {
		t.Errorf("got %+v, %v", r.Values, err)
	}
}

// TestLaunch: ranks on hosts have the same cores and settings as ranks in pods.
func TestLaunch(t *testing.T) {
	s := Spec{Nodes: 2, CPUs: 4, Parameters: map[string]string{"hosts-launcher": "srun"}}
	argv, err := s.launch()
	if said := strings.Join(argv, " "); err != nil || !strings.HasPrefix(said, "env OMPI_MCA_mpi_yield_when_idle=1 srun ") || !strings.HasSuffix(said, " -c4") {
		t.Errorf("%s, %v", said, err)
	}
	s.Through = []string{"apptainer", "exec"}
	if argv, err = s.launch(); err != nil || !strings.HasSuffix(strings.Join(argv, " "), " -c4 apptainer exec") {
		t.Errorf("in a container: %q, %v", argv, err)
	}
	s.Through, s.Hosts, s.Parameters["hosts-launcher"] = nil, []string{"n1", "n2"}, "mpirun"
	argv, err = s.launch()
	for _, said := range []string{strings.Join(argv, " "), strings.Join(s.mpirun(), " ")} {
		if err != nil || !strings.Contains(said, " --host ") || !strings.Contains(said, " --bind-to none ") || !strings.Contains(said, " mpi_yield_when_idle 1 ") {
			t.Errorf("%s, %v", said, err)
		}
	}
}

// TestMPIWorkers: pods that do not answer each other at first are queried again.
func TestMPIWorkers(t *testing.T) {
	s := cluster(t, `case "$*" in
apply*) cat >"$(dirname "$0")/applied" ;;
exec*) [ -e "$(dirname "$0")/asked" ] || { touch "$(dirname "$0")/asked"; exit 1; } ;;
esac`)
	if err := s.answer(t.Context(), "one", 0); err == nil || !strings.Contains(err.Error(), "have not come to reach each other") {
		t.Errorf("got %v", err)
	}
	first, err := s.mpiWorkers(t.Context())
	if err != nil || first != "mpi-launcher" {
		t.Fatalf("got %q, %v", first, err)
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(s.Kubectl[0]), "applied"))
	if err != nil || !strings.Contains(string(text), "DoNotSchedule") || !strings.Contains(string(text), "OPENSSH PRIVATE KEY") {
		t.Errorf("%v: %s", err, text)
	}
}

// TestMPIVersion: the version of MPI is queried where the programs run; no
// answer is no failure.
func TestMPIVersion(t *testing.T) {
	const took = "printf 'step took 0.5\\nMPI_Init took 0.1\\n'"
	pods := cluster(t, `case "$*" in
*" -- mpirun --allow-run-as-root --version") printf 'mpirun (Open MPI) 5.0.7\n\nReport bugs\n' ;;
*subprocess*) `+took+` ;;
esac`)
	pods.Parameters = map[string]string{"steps": "1"}
	if r, err := mpiPods(t.Context(), pods); err != nil || r.MPI != "mpirun (Open MPI) 5.0.7" {
		t.Errorf("in pods: %q, %v", r.MPI, err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"srun": `case "$*" in
*" -N1 -n1 "*" --container-image=/i in mpirun --version") echo 'mpirun (Open MPI) 5.0.8' ;;
*) echo MPI_Init took 0.1 ;;
esac`,
		"mpirun": `case "$*" in --version) [ ! -e "${0%/*}/none" ] && echo 'mpirun (Open MPI) 4.1.4' ;; *) echo MPI_Init took 0.1 ;; esac`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	job := Spec{Nodes: 2, CPUs: 1, Step: []string{"--container-image=/i"}, Through: []string{"in"}, Parameters: map[string]string{"steps": "1", "hosts-launcher": "srun"}}
	if r, err := mpiSteps(t.Context(), job); err != nil || r.MPI != "mpirun (Open MPI) 5.0.8" {
		t.Errorf("in a step: %q, %v", r.MPI, err)
	}
	job.Step, job.Parameters["hosts-launcher"] = nil, "mpirun"
	for _, want := range []string{"mpirun (Open MPI) 4.1.4", ""} {
		if r, err := mpiSteps(t.Context(), job); err != nil || r.MPI != want || len(r.Values) == 0 {
			t.Errorf("on hosts: %q, %v, want %q", r.MPI, err, want)
		}
		if err := os.WriteFile(filepath.Join(dir, "none"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestProgram: the lines of a program that are figures are read, and the program gets
// the number of nodes.
func TestProgram(t *testing.T) {
	s := Spec{Parameters: map[string]string{"nodes": "4", "command": `echo hello; echo "{\"name\": \"a\", \"unit\": \"s\", \"value\": $NODES}"`}}
	r, err := program(t.Context(), s)
	if err != nil || len(r.Values) != 1 || r.Values[0].Value != 4 {
		t.Errorf("got %+v, %v", r, err)
	}
	for _, command := range []string{"exit 3", "echo nothing", `echo '{"name": "a", "valeu": 1}'`, `echo '{"name": "a"}'; echo '{"name": "a"}'`} {
		s.Parameters["command"] = command
		if r, err := program(t.Context(), s); err == nil {
			t.Errorf("%s: got %+v", command, r)
		}
	}
}

// TestNetworkSetupCosts: the processor times of test/site/measure become figures per
// launch and per node.
func TestNetworkSetupCosts(t *testing.T) {
	// Of 3 nodes a job has 2, and two jobs take 4 s: 100 ms of etcd, 60 and 40 ms
	// of berthd. Without jobs it is 20, 10 and 0 ms in 2 s. Each time has its
	// label, etcd's value and each node's.
	const times = "100.0 50 10 20 0 104.0 60 16 24 9 90.0 40 5 20 0 92.0 42 6 20 7"
	r, err := program(t.Context(), Spec{Parameters: map[string]string{"nodes": "2", "command": `bash -c '
		eval "$(sed -n "/^cost() {/,/^}/p; /^figure() {/p" ../../../test/site/measure)"
		nodes=3 repeats=2
		read -ra cpu < <(echo ` + times + ` | cost 2)
		for i in "${!cpu[@]}"; do figure "$i" "${cpu[$i]}"; done'`}})
	if err != nil {
		t.Fatal(err)
	}
	var got []float64
	for _, v := range r.Values {
		got = append(got, v.Value)
		if v.Unit != "ms" || v.Better != "lower" {
			t.Errorf("got %+v", v)
		}
	}
	// berthd on a node and on the first one, and etcd; without jobs, berthd and etcd.
	if want := []float64{25, 30, 25, 5, 10}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestProgramEnds: the processes that a program has started end with it, even
// the ones that ignore the request to end.
func TestProgramEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := program(ctx, Spec{Parameters: map[string]string{
			"command": `sh -c 'trap "" TERM; echo $$ >"$0.new"; mv "$0.new" "$0"; exec sleep 1000' ` + path + ` >/dev/null & wait`,
		}})
		done <- err
	}()
	var stat string
	for ctx.Err() == nil && stat == "" {
		if pid, err := os.ReadFile(path); err == nil {
			stat = "/proc/" + strings.TrimSpace(string(pid)) + "/stat"
		}
		time.Sleep(5 * time.Millisecond)
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("it was ended, and says nothing")
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if text, err := os.ReadFile(stat); err != nil || strings.Contains(string(text), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("what it has started goes on")
		}
	}
}

// TestCounted: the result of an MPI sequence between pods counts on all nodes which
// connections the hosts made, except connections within a node. Without these counts,
// the result does not call any connection fast.
func TestCounted(t *testing.T) {
	dir := t.TempDir()
	s := cluster(t, `echo "$2" >>`+dir+`/asked
n=$(grep -c "$2" `+dir+`/asked)
echo "berth_fastpath_total{node=\"x\",outcome=\"connected\"} $((4 * n))"
echo "berth_fastpath_total{node=\"x\",outcome=\"overlay: the address is no other node's pod\"} $((9 * n))"
[ "$2" = mpi-0 ] || echo "berth_fastpath_total{node=\"x\",outcome=\"overlay: the node wants it so\"} $n"
`)
	steps := func() (Result, error) { return Result{Values: []record.Value{{Name: "step", Value: 1}}}, nil }
	if r, err := s.counted(t.Context(), steps); err != nil || len(r.Values) != 1 {
		t.Errorf("nobody asked for it: %+v, %v", r, err)
	}
	s.Counted = true
	r, err := s.counted(t.Context(), steps)
	if err != nil || len(r.Values) != 2 || r.Values[1].Name != record.Share || r.Values[1].Value < 88.8 || r.Values[1].Value > 88.9 {
		t.Errorf("got %+v, %v", r, err)
	}
	if r.Left["the node wants it so"] != 1 || r.Left["the address is no other node's pod"] != 16 {
		t.Errorf("left: %v", r.Left)
	}
	s = cluster(t, "exit 1\n")
	s.Counted = true
	if _, err := s.counted(t.Context(), steps); err == nil || !strings.Contains(err.Error(), "read the counters of connections") {
		t.Errorf("a page that cannot be read: %v", err)
	}
}

// TestHPCCInput checks the number of each line. hpcc would read a misplaced line as
// another problem, with a size that nobody gave.
func TestHPCCInput(t *testing.T) {
	text, err := Spec{Nodes: 3, Parameters: map[string]string{"size": "1000"}}.hpccInput()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(text, "\n")
	for number, want := range map[int]string{
		6: "1000 Ns", 12: "3 Qs", 13: "16.0 threshold", 26: "2 SWAP", 27: "64 swapping threshold", 31: "8 memory alignment in double",
		33: "0 Number of additional problem sizes for PTRANS", 35: "0 number of additional blocking sizes for PTRANS", 37: "",
	} {
		if lines[number-1] != want {
			t.Errorf("line %d is %q, want %q", number, lines[number-1], want)
		}
	}
	if len(lines) != 37 {
		t.Errorf("%d lines", len(lines))
	}
}
