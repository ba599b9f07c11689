package slurm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestQueueParsesSqueue(t *testing.T) {
	var asked []string
	jobs, err := Queue(t.Context(), 1001, func(_ context.Context, command ...string) ([]byte, error) {
		asked = command
		return []byte("14|12_3|RUNNING|1001|2|n[1-2]|1-02:03:04|57:56|None|a|b c\n" +
			"15|15|PENDING|1001|1||0:00|UNLIMITED|Resources|wrap\n"), nil
	})
	if err != nil || len(jobs) != 2 {
		t.Fatalf("%v, %v", jobs, err)
	}
	if asked[0] != "squeue" || !slices.Contains(asked, "--user=1001") {
		t.Errorf("asked %q", asked)
	}
	want := Queued{
		ID: "14", Name: "12_3", State: Running, Reason: "None", JobName: "a|b c", UID: 1001, Nodes: 2, NodeList: "n[1-2]",
		Elapsed: 26*time.Hour + 3*time.Minute + 4*time.Second, Left: 57*time.Minute + 56*time.Second,
	}
	if jobs[0] != want {
		t.Errorf("%+v, want %+v", jobs[0], want)
	}
	if jobs[1].Left != -1 || jobs[1].Reason != "Resources" {
		t.Errorf("%+v", jobs[1])
	}
}

func TestUnknownJob(t *testing.T) {
	_, ok, err := QueuedJob(t.Context(), "99", func(context.Context, ...string) ([]byte, error) {
		return nil, errors.New("run squeue: exit status 1: slurm_load_jobs error: Invalid job id specified")
	})
	if ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
}

func TestUnexpectedLineIsAnError(t *testing.T) {
	if _, err := parseQueued("squeue: something"); err == nil {
		t.Error("no error")
	}
}

func TestStepIntoJobDropsCallersStep(t *testing.T) {
	env := IntoEnv([]string{"SLURM_CONF=/etc/s", "SLURM_JOB_ID=3", "SRUN_DEBUG=3", "PATH=/bin", "SLURMD_NODENAME=n1"})
	if got := strings.Join(env, " "); got != "SLURM_CONF=/etc/s PATH=/bin" {
		t.Errorf("%s", got)
	}
	command := IntoCommand("12", "n2", false, "/opt/berth", "end")
	if !slices.Contains(command, "--jobid=12") || !slices.Contains(command, "--nodelist=n2") || command[len(command)-1] != "end" {
		t.Errorf("%q", command)
	}
}

func TestFirstNodesOfStepsAreListedOnce(t *testing.T) {
	nodes, err := StepNodes(t.Context(), "12", 2, func(context.Context, ...string) ([]byte, error) {
		return []byte("n[3-4]\nn1\nn[1-4]\n"), nil
	})
	if err != nil || !slices.Equal(nodes, []string{"n3", "n4", "n1", "n2"}) {
		t.Errorf("%q, %v", nodes, err)
	}
}

func TestSpansAreWrittenAsSlurmDoes(t *testing.T) {
	for want, span := range map[string]time.Duration{
		"0:00": 0, "0:09": 9*time.Second + 900*time.Millisecond, "59:59": time.Hour - time.Second, "1:00:00": time.Hour,
		"1-02:03:04": 26*time.Hour + 3*time.Minute + 4*time.Second,
	} {
		if got := FormatSpan(span); got != want {
			t.Errorf("%s is written as %s, want %s", span, got, want)
		}
		if read, ok := parseSpan(want); !ok || read != span.Truncate(time.Second) {
			t.Errorf("%s is read as %s, %v", want, read, ok)
		}
	}
	if got := FormatSpan(-time.Hour); got != "0:00" {
		t.Errorf("a negative time is %s", got)
	}
}

func TestHeadOfStepIsRemainingNode(t *testing.T) {
	for has, want := range map[string]string{"n[1-3]\n": "n1", "n2\nn3\n": "n2", "x\n": "n1"} {
		id, head, err := StepNamed(t.Context(), "12", "wanted", func(_ context.Context, command ...string) ([]byte, error) {
			if slices.Contains(command, "--steps") {
				return []byte("12.0|n[1-3]|other|wanted\n12.1|n[1-3]|wanted\n"), nil
			}
			return []byte(has), nil
		})
		if id != "12.1" || head != want || err != nil {
			t.Errorf("a job that has %q: %q, %q, %v; want %s", has, id, head, err, want)
		}
	}
}

// The IDs of the elements are 13 and 12, which is also the ID of the array.
func TestStepOfArrayElementIsItsOwn(t *testing.T) {
	for job, want := range map[string]string{"12": "12_2.0 n2", "12_1": "12_1.0 n1", "11": " "} {
		id, head, err := StepNamed(t.Context(), job, "wanted", func(_ context.Context, command ...string) ([]byte, error) {
			switch {
			case slices.Contains(command, "--steps"):
				return []byte("12_1.batch|n1|batch\n12_1.0|n1|wanted\n12_2.0|n[2-3]|wanted\n"), nil
			case slices.Contains(command, "--format=%A|%i"):
				return []byte("13|12_1\n12|12_2\n"), nil
			case slices.Contains(command, "--jobs=12_2"):
				return []byte("n[2-3]\n"), nil
			}
			return nil, fmt.Errorf("asked %q", command)
		})
		if got := id + " " + head; got != want || err != nil {
			t.Errorf("job %s: %s, %v; want %s", job, got, err, want)
		}
	}
}

func TestTerminateStep(t *testing.T) {
	for _, c := range []struct {
		said string
		want bool // an error
	}{
		{"", false},
		{"run scancel --signal=TERM 9.0: exit status 1: scancel: error: Kill job error on job step id 9.0: Job/step already completing or completed", false},
		{"run scancel --signal=TERM 9.0: exit status 1: scancel: error: Kill job error on job step id 9.0: Invalid job id specified", false},
		{"run scancel --signal=TERM 9.0: exit status 1: scancel: error: Kill job error on job step id 9.0: Unable to contact slurm controller", true},
	} {
		err := TerminateStep(t.Context(), "9.0", func(_ context.Context, command ...string) ([]byte, error) {
			if want := "scancel --signal=TERM 9.0"; strings.Join(command, " ") != want {
				t.Errorf("%q is run, want %q", command, want)
			}
			if c.said != "" {
				return nil, errors.New(c.said)
			}
			return nil, nil
		})
		if (err != nil) != c.want {
			t.Errorf("%q: %v", c.said, err)
		}
	}
}
