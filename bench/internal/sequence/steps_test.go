package sequence

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// slurm puts fake Slurm commands first in the PATH. They note their arguments
// and run a script. It returns the note's path.
func slurm(t *testing.T, script string) (note string) {
	t.Helper()
	dir := t.TempDir()
	note = filepath.Join(dir, "note")
	for _, name := range []string{"sbatch", "srun", "squeue", "scancel"} {
		text := "#!/bin/sh\nname=" + name + " note='" + note + "'\necho \"$name $*\" >>\"$note\"\n" + script
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return note
}

// running answers as a Slurm with two jobs that run until they are cancelled.
const running = `case "$name" in
sbatch) case "$*" in *outside*) echo '8;c' ;; *) echo '7;c' ;; esac ;;
squeue) case "$*" in *states*) echo RUNNING ;; *%N*) echo 'n[1-2]' ;; *) grep -q ^scancel "$note" || echo 7 ;; esac ;;
esac
`

// TestSteps: steps of both jobs take turns, each with its own options; the jobs end.
func TestSteps(t *testing.T) {
	note := slurm(t, running)
	s := Spec{
		Nodes: 2, CPUs: 4, MemoryMB: 900, Job: []string{"--network-pod=yes"}, Step: []string{"--container-image=/i"}, Outside: []string{"--outside"},
		Parameters: map[string]string{"pairs": "3", "program": "sh -c true"}, Timeout: time.Minute,
	}
	r, err := steps(t.Context(), s)
	if err != nil || len(r.Values) != 7 || r.Values[6].Name != stepTimes || r.Values[6].Value <= 0 {
		t.Fatalf("got %+v, %v", r.Values, err)
	}
	text, err := os.ReadFile(note)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for line := range strings.Lines(string(text)) {
		in, out := strings.Contains(line, "--jobid=7"), strings.Contains(line, "--jobid=8")
		switch {
		case !strings.HasPrefix(line, "srun"):
		case in && strings.Contains(line, "-N2 -n2 --ntasks-per-node=1 -c4 --container-image=/i sh -c true"):
			order = append(order, "in")
		case out && strings.HasSuffix(line, " -c4 sh -c true\n"):
			order = append(order, "out")
		default:
			t.Errorf("it calls %s", line)
		}
	}
	if got := strings.Join(order, " "); got != "in out out in in out out in" {
		t.Errorf("steps in the order %s", got)
	}
	if !strings.Contains(string(text), "scancel --quiet 7 8\n") || !strings.Contains(string(text), "--network-pod=yes") ||
		!strings.Contains(string(text), "-c4 --mem=450 --outside --nodelist=n[1-2] ") {
		t.Errorf("it calls\n%s", text)
	}
}

// TestStepsEnd: whatever goes wrong, the jobs end that were there.
func TestStepsEnd(t *testing.T) {
	for name, c := range map[string]struct{ script, want, cancels string }{
		"a step that fails":  {"[ $name != srun ] || { echo no such step >&2; exit 1; }\n" + running, "no such step", "7 8"},
		"a job that ends":    {"case \"$name $*\" in squeue*states*) echo FAILED; exit ;; esac\n" + running, "the job 7 is FAILED before its first step", "7"},
		"a job that is none": {"case \"$name $*\" in sbatch*outside*) echo no such option >&2; exit 1 ;; esac\n" + running, "no such option", "7"},
	} {
		t.Run(name, func(t *testing.T) {
			note := slurm(t, c.script)
			_, err := steps(t.Context(), Spec{Nodes: 1, Outside: []string{"--outside"}, Parameters: map[string]string{"pairs": "1", "program": "true"}})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
			text, err := os.ReadFile(note)
			if err != nil || !strings.Contains(string(text), "scancel --quiet "+c.cancels+"\n") {
				t.Errorf("it calls\n%s, %v", text, err)
			}
		})
	}
	note := slurm(t, "case \"$name $*\" in squeue*states*) echo PENDING; exit ;; esac\n"+running)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, errors.New("it is over"))
	defer cancel()
	_, err := steps(ctx, Spec{Nodes: 1, Parameters: map[string]string{"pairs": "1", "program": "true"}})
	text, wrong := os.ReadFile(note)
	if err == nil || wrong != nil || !strings.Contains(string(text), "scancel --quiet 7\n") {
		t.Errorf("a job that never runs: %v, %v\n%s", err, wrong, text)
	}
}
