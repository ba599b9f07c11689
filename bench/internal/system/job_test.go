package system

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/bench/internal/sequence"
)

// submits returns a place whose Slurm runs a job at once, and knows nothing of it
// afterwards. Its bench prints its arguments.
func submits(t *testing.T, sbatch string) Place {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"sbatch": sbatch, "squeue": "", "scancel": "echo \"$@\" >>'" + dir + "/cancelled'\n",
		"srun": "echo \"$@\" >'" + dir + "/asked'\n", "self": "echo \"$@\"; echo careful >&2\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("SLURM_JOB_ID", "")
	t.Chdir(dir)
	return Place{Self: filepath.Join(dir, "self"), StepImage: "/images/hpc", CPUs: 2, MemoryMB: 900, Timeout: time.Minute}
}

// atOnce is an sbatch that keeps its options, and runs the script of the job.
const atOnce = `for word in "$@"; do
	shift
	case "$word" in -*) options="$options $word" ;; *) set -- "$@" "$word" ;; esac
done
echo "$options" >options
echo 7
exec sh "$@"
`

// TestJob: each trial is a job with the system's options, and its figures come
// from the bench's output in the job. Nothing stays in the folder.
func TestJob(t *testing.T) {
	place := submits(t, atOnce)
	j := newJob(place, map[string]string{"options": "--network-pod=yes --exclusive", "step": "--container-image={image}", "outside": "--network-pod=no"})
	out, err := j.Run(t.Context(), Task{Sequence: &Sequence{Job: sequence.MPISteps, Nodes: 8, Parameters: map[string]string{"steps": "2"}}})
	if err != nil || !strings.Contains(out.Stdout, `"Step":["--container-image=/images/hpc"]`) || !strings.Contains(out.Stdout, `"Nodes":8`) {
		t.Errorf("got %s, %v", out.Stdout, err)
	}
	options, err := os.ReadFile("options")
	if err != nil || !strings.Contains(string(options), " -N8 -n8 --ntasks-per-node=1 -c2 --mem=900 --network-pod=yes --exclusive") {
		t.Errorf("options %s, %v", options, err)
	}
	if left, err := filepath.Glob("berth-bench-job-*"); err != nil || left != nil {
		t.Errorf("left: %s, %v", left, err)
	}
	// Alternating steps are started from here, without a job around them.
	if err := os.Remove("options"); err != nil {
		t.Fatal(err)
	}
	out, err = j.Run(t.Context(), Task{Sequence: &Sequence{Job: sequence.Steps, Nodes: 2}})
	if _, none := os.Stat("options"); err != nil || none == nil || !strings.Contains(out.Stdout, `"Outside":["--network-pod=no"]`) {
		t.Errorf("got %s, %v", out.Stdout, err)
	}
	var unsupported *Unsupported
	if _, err := j.Run(t.Context(), Task{Args: []string{"date"}}); !errors.As(err, &unsupported) {
		t.Errorf("a program: %v", err)
	}
	if _, err := (&bare{unpacked{place}}).Run(t.Context(), Task{Sequence: &Sequence{Job: sequence.Steps}}); !errors.As(err, &unsupported) {
		t.Errorf("steps on bare metal: %v", err)
	}
}

// TestRecordsKeepNotesOfSequences: a trial's record has what its sequence reports besides figures.
func TestRecordsKeepNotesOfSequences(t *testing.T) {
	place := submits(t, atOnce)
	if err := os.WriteFile(place.Self, []byte("#!/bin/sh\necho '"+`{"mpi": "mpirun (Open MPI) 5.0.7", "left_to_overlay": {"policy": 2}}`+"'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := newJob(place, nil).Run(t.Context(), Task{Sequence: &Sequence{Job: sequence.MPISteps, Nodes: 2}})
	if err != nil || out.Step.MPI != "mpirun (Open MPI) 5.0.7" || out.Step.Left["policy"] != 2 {
		t.Errorf("got %+v, %v", out.Step, err)
	}
}

// TestJobFails: the error has the reason why a job failed, even if the job ended itself.
// An ended trial cancels its job.
func TestJobFails(t *testing.T) {
	task := Task{Sequence: &Sequence{Job: sequence.HPCCJob, Nodes: 2}}
	for want, sbatch := range map[string]string{
		"no such partition": "echo no such partition >&2; exit 1\n",
		"the job 7 ended before its command: out of memory": "for o in \"$@\"; do case $o in --output=*) echo out of memory >${o#*=} ;; esac; done; echo 7\n",
	} {
		j := newJob(submits(t, sbatch), nil)
		if _, err := j.Run(t.Context(), task); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	place := submits(t, "touch submitted; echo 7\n")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		for {
			if _, err := os.Stat(filepath.Join(filepath.Dir(place.Self), "submitted")); err == nil {
				cancel(errors.New("it is over"))
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := newJob(place, nil).Run(ctx, task); err == nil || !strings.Contains(err.Error(), "it is over") {
		t.Errorf("got %v", err)
	}
	if text, err := os.ReadFile("cancelled"); err != nil || string(text) != "--quiet 7\n" {
		t.Errorf("cancelled %s, %v", text, err)
	}
	if left, err := filepath.Glob("berth-bench-job-*"); err != nil || left != nil {
		t.Errorf("left: %s, %v", left, err)
	}
}

// TestJobCheck: missing requirements are reported before any trial.
func TestJobCheck(t *testing.T) {
	options := map[string]string{"options": "--network-pod=yes", "step": "--container-image={image}"}
	place := submits(t, "echo slurm 25.11\n")
	versions, err := newJob(place, options).Check(t.Context())
	if err != nil || versions["slurm"] != "25.11" {
		t.Errorf("got %v, %v", versions, err)
	}
	if said, err := os.ReadFile("asked"); err != nil || !strings.Contains(string(said), "-N1 -n1 --network-pod=yes --container-image=/images/hpc true") {
		t.Errorf("it asks %s, %v", said, err)
	}
	if err := os.WriteFile("srun", []byte("#!/bin/sh\necho unrecognized option --network-pod=yes >&2; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := newJob(place, options).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "unrecognized option") {
		t.Errorf("without the site network: %v", err)
	}
	place.StepImage = ""
	if _, err := newJob(place, options).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "--step-image") {
		t.Errorf("without an image: %v", err)
	}
	t.Setenv("SLURM_JOB_ID", "1")
	if _, err := newJob(place, options).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "bench run --local") {
		t.Errorf("within a job: %v", err)
	}
}
