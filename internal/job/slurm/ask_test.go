package slurm

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/base/probe"
)

// A site's wrapper may leave a process that has the pipe of a command's output.
func TestAskWhileOutputIsOpen(t *testing.T) {
	t.Parallel()
	folder := t.TempDir() // the process ends when the test removes it
	script := "while [ -d " + folder + " ]; do sleep 0.1; done & echo answer"
	if output, err := askWithin(t.Context(), nil, time.Minute, "sh", "-c", script); err != nil || string(output) != "answer\n" {
		t.Errorf("got %q, %v", output, err)
	}
}

func TestNodeAddress(t *testing.T) {
	answers := func(said string, err error) Ask {
		return func(_ context.Context, command ...string) ([]byte, error) {
			if want := "scontrol --oneliner show node Gpu_01"; strings.Join(command, " ") != want {
				t.Errorf("%q is run, want %q", command, want)
			}
			return []byte(said), err
		}
	}
	if got, err := NodeAddress(t.Context(), "Gpu_01", answers("NodeName=Gpu_01 Arch=x86_64 NodeAddr=10.0.0.7 NodeHostName=gpu01 Version=22.05.8", nil)); err != nil || got != "10.0.0.7" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := NodeAddress(t.Context(), "Gpu_01", answers("Node Gpu_01 not found", nil)); err == nil {
		t.Errorf("%q without an address", got)
	}
	if _, err := NodeAddress(t.Context(), "Gpu_01", answers("", exec.ErrNotFound)); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("%v without Slurm", err)
	}
}

const showConfig = `Configuration data as of 2026-11-20T23:10:00
AccountingStorageBackupHost = (null)
ClusterName             = bed
JobContainerType        = job_container/none
KillWait                = 30 sec
MpiDefault              = none
ProctrackType           = proctrack/linuxproc
Prolog                  = (null)
PrologFlags             = Alloc,Contain
SLURM_VERSION           = 22.05.8
TaskPlugin              = task/none

Cgroup Support Configuration:
AllowedRAMSpace         = 100.0%

Slurmctld(primary) at ctl is UP
`

func answering(output string, err error) Ask {
	return func(context.Context, ...string) ([]byte, error) { return []byte(output), err }
}

func TestParseConfig(t *testing.T) {
	config := parseConfig([]byte(showConfig))
	for name, want := range map[string]string{"SLURM_VERSION": "22.05.8", "proctracktype": "proctrack/linuxproc", "Prolog": "", "absent": "", "AllowedRAMSpace": "100.0%"} {
		if got := config.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestEndTime(t *testing.T) {
	const job = "JobId=7 JobName=a RunTime=00:00:10 StartTime=2026-11-21T00:00:00 EndTime=%s Deadline=N/A\n"
	ask := func(end string) Ask { return answering(fmt.Sprintf(job, end), nil) }
	want := time.Date(2026, 11, 21, 1, 0, 0, 0, time.Local)
	if got, err := EndTime(t.Context(), Job{ID: "7"}, ask("2026-11-21T01:00:00")); err != nil || !got.Equal(want) {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := EndTime(t.Context(), Job{ID: "7"}, ask("Unknown")); err != nil || !got.IsZero() {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := EndTime(t.Context(), Job{ID: "7", End: want}, answering("", errors.New("asked"))); err != nil || !got.Equal(want) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []Ask{ask("soon"), answering("nothing", nil), answering("", errors.New("down"))} {
		if _, err := EndTime(t.Context(), Job{ID: "7"}, bad); err == nil {
			t.Error("no error")
		}
	}
}

func TestNodeMemory(t *testing.T) {
	for answer, want := range map[string]uint64{
		"JobId=7 MinMemoryNode=1500M X=1": 1500 << 20, "MinMemoryNode=1.50G": 3 << 29, "MinMemoryNode=0": 0,
		"MinCPUsNode=1 MinMemoryCPU=100M": 400 << 20,
	} {
		if got, err := nodeMemory(t.Context(), Job{ID: "7", AllocatedCPUs: 4}, answering(answer, nil)); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", answer, got, err, want)
		}
	}
	for _, bad := range []Ask{answering("JobId=7", nil), answering("MinMemoryNode=much", nil), answering("", errors.New("down"))} {
		if _, err := nodeMemory(t.Context(), Job{ID: "7"}, bad); err == nil {
			t.Error("no error")
		}
	}
}

func TestJobLimitsMemoryByDefault(t *testing.T) {
	answer := answering("MinMemoryNode=300M", nil)
	for _, c := range []struct {
		limit probe.Memory
		want  uint64
	}{
		{probe.Memory{Bytes: 2 << 30, Physical: 2 << 30}, 300 << 20},
		{probe.Memory{Bytes: 200 << 20, Physical: 200 << 20}, 200 << 20},
		{probe.Memory{Bytes: 1 << 30, Physical: 2 << 30}, 1 << 30}, // from a Slurm variable
		{probe.Memory{Bytes: 2 << 30, Physical: 2 << 30, Enforced: true}, 2 << 30},
	} {
		if got, err := LimitMemory(t.Context(), Job{ID: "7"}, c.limit, answer); err != nil || got.Bytes != c.want {
			t.Errorf("%+v: %+v, %v", c.limit, got, err)
		}
	}
	limit := probe.Memory{Bytes: 2 << 30, Physical: 2 << 30}
	if got, err := LimitMemory(t.Context(), Job{ID: "7"}, limit, answering("", errors.New("down"))); err == nil || got != limit {
		t.Errorf("without an answer: %+v, %v", got, err)
	}
}

func TestCheck(t *testing.T) {
	states := func(results []probe.Result) string {
		var words []string
		for _, r := range results {
			words = append(words, r.Name+"="+string(r.OK))
		}
		return strings.Join(words, " ")
	}
	outside := func(string) string { return "" }
	tests := []struct {
		name string
		got  []probe.Result
		want string
	}{
		{"no Slurm", Check(t.Context(), outside, answering("", exec.ErrNotFound)), "slurm=no"},
		{"controller down", Check(t.Context(), outside, answering("", errors.New("no answer within 3s"))), "slurm=unknown"},
		{"loose site", Check(t.Context(), outside, answering(showConfig, nil)),
			"slurm=yes slurm-tracking=degraded slurm-limits=degraded slurm-killwait=yes slurm-tmp=no slurm-contain=yes"},
		{"shell of salloc", Check(t.Context(), environment(t, "salloc"), answering(showConfig, nil)),
			"slurm=yes slurm-tracking=degraded slurm-limits=degraded slurm-killwait=yes slurm-tmp=no slurm-contain=yes slurm-time=unknown slurm-place=degraded"},
		{"little time", []probe.Result{checkTime(t.Context(), Job{End: time.Now().Add(4 * time.Second)}, nil)}, "slurm-time=no"},
		{"time enough", []probe.Result{checkTime(t.Context(), Job{End: time.Now().Add(time.Hour)}, nil)}, "slurm-time=yes"},
		{"no time limit", []probe.Result{checkTime(t.Context(), Job{ID: "7"}, answering("JobId=7 EndTime=Unknown Deadline=N/A", nil))}, "slurm-time=yes"},
	}
	for _, test := range tests {
		if got := states(test.got); got != test.want {
			t.Errorf("%s: got %s", test.name, got)
		}
		for _, r := range test.got {
			if r.Found == "" || r.OK == probe.No && r.Cost == "" || r.OK == probe.Degraded && r.Cost == "" {
				t.Errorf("%s: incomplete: %+v", test.name, r)
			}
		}
	}
}

func TestAskSlurm(t *testing.T) {
	if _, err := ReadConfig(t.Context(), func(ctx context.Context, _ ...string) ([]byte, error) { return AskSlurm(ctx, "berth-no-such-command") }); !errors.Is(err, ErrNoSlurm) {
		t.Errorf("got %v", err)
	}
	if _, err := AskSlurm(t.Context(), "sh", "-c", "echo it is down >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "it is down") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := AskSlurm(ctx, "sleep", "60"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// A process that has the pipe of a command's output keeps it after the command's end.
func TestAskSlurmWhileOutputIsOpen(t *testing.T) {
	output, err := AskSlurm(t.Context(), "sh", "-c", "sleep 0.3 & echo answer")
	if err != nil || string(output) != "answer\n" {
		t.Errorf("got %q (%v)", output, err)
	}
}

// The signals of a terminal do not reach a Slurm command in the middle of its work.
func TestAskSlurmInItsOwnSession(t *testing.T) {
	stat, err := AskSlurm(t.Context(), "cat", "/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat)) // proc_pid_stat(5): 1 is the pid, 6 the session
	if pid, session := fields[0], fields[5]; session != pid {
		t.Errorf("process %s is in session %s, want its own", pid, session)
	}
}
