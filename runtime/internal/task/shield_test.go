package task

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	gorunc "github.com/containerd/go-runc"
)

func TestOnlyProgramsOfContainersStartWithDefaultDispositions(t *testing.T) {
	var listened []string
	monitor := Shield(startOnly{}, "sandbox", func(id string) { listened = append(listened, id) })
	for _, test := range []struct {
		args string
		want uint64
	}{
		{"runc create container", 0},
		{"runc kill container", 3},
		{"runc exec container", 0},
		{"runc create sandbox", 3},
		{"runc delete sandbox", 3},
		{"runc create container", 0},
	} {
		var said strings.Builder
		// grep skips the words of runc, as there are no such files.
		c := exec.Command("grep", append([]string{"-hs", "SigIgn", "/proc/self/status"}, strings.Fields(test.args)...)...)
		c.Stdout = &said
		if _, err := monitor.Start(c); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		ignored, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(said.String(), "SigIgn:")), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		// Without real-time signals: children of make ignore two that are glibc's own.
		if got := ignored & (1<<31 - 1); got != test.want {
			t.Errorf("%s: ignored signals are %#x, want %#x", test.args, got, test.want)
		}
	}
	if want := []string{"container", "container", "container"}; !slices.Equal(listened, want) {
		t.Errorf("filters for processes of %q, want %q", listened, want)
	}
}

// quits makes this program end itself as SIGQUIT ends runc, which is in Go, too.
const quits = "BERTH_TEST_QUITS"

// Slurm signals every process of a job, also a runc that is about to end a container.
func TestRuncThatEndsContainerIsRestarted(t *testing.T) {
	if os.Getenv(quits) != "" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGQUIT)
		select {}
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	monitor := Shield(startOnly{}, "sandbox", nil)
	for _, test := range []struct {
		name, args, how string
		signals         int
		status, starts  int
	}{
		{"signalled twice", "kill container 15", "kill -TERM $$", 2, 0, 3},
		{"SIGQUIT before Go begins", "delete container", "kill -QUIT $$", 1, 0, 2},
		{"SIGQUIT", "delete container", `{ ` + quits + `=1 "$PROGRAM" -test.run=TestRuncThatEndsContainer >/dev/null 2>&1; exit $?; }`, 1, 0, 2},
		{"panics", "delete container", "exit 2", 100, 2, 1 + restarts},
		{"signalled again and again", "kill container 15", "kill -TERM $$", 100, 143, 1 + restarts},
		{"killed", "kill container 15", "kill -KILL $$", 1, 137, 1},
		{"failed", "kill container 15", "exit 1", 1, 1, 1},
		{"makes a container", "create container", "kill -TERM $$", 1, 143, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			var said strings.Builder
			// Each start writes a line; the first ones end as told.
			script := `echo >>starts; [ "$(wc -l <starts)" -gt ` + strconv.Itoa(test.signals) + ` ] || ` + test.how + `; echo "$@"`
			c := exec.Command("sh", append([]string{"-c", script, "runc"}, strings.Fields(test.args)...)...)
			c.Dir, c.Stdout = t.TempDir(), &said
			c.Env = append(os.Environ(), "PROGRAM="+program)
			exits, err := monitor.StartLocked(c)
			if err != nil {
				t.Fatal(err)
			}
			if status, err := monitor.Wait(c, exits); status != test.status || err != nil {
				t.Errorf("status %d, %v; want %d", status, err, test.status)
			}
			starts, err := os.ReadFile(filepath.Join(c.Dir, "starts"))
			if err != nil || len(starts) != test.starts {
				t.Errorf("started %d times, %v; want %d", len(starts), err, test.starts)
			}
			want := ""
			if test.status == 0 {
				want = test.args + "\n"
			}
			if said.String() != want {
				t.Errorf("output %q, want %q", &said, want)
			}
		})
	}
}

// A request that is cancelled ends its runc, also one that was started again.
func TestRestartedRuncIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	monitor := Shield(startOnly{}, "sandbox", nil)
	c := exec.CommandContext(ctx, "sh", "-c", `echo >>starts; [ "$(wc -l <starts)" -gt 1 ] || kill -TERM $$; exec sleep 30`, "runc", "kill", "container")
	c.Dir = t.TempDir()
	exits, err := monitor.StartLocked(c)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer cancel()
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if starts, _ := os.ReadFile(filepath.Join(c.Dir, "starts")); len(starts) == 2 {
				return
			}
		}
	}()
	if status, err := monitor.Wait(c, exits); status != 128+int(syscall.SIGKILL) || err != nil {
		t.Errorf("status %d, %v", status, err)
	}
}

// startOnly starts commands, and waits for them as containerd's reaper does.
type startOnly struct{ gorunc.ProcessMonitor }

func (startOnly) Start(c *exec.Cmd) (chan gorunc.Exit, error) { return nil, c.Start() }

func (s startOnly) StartLocked(c *exec.Cmd) (chan gorunc.Exit, error) { return s.Start(c) }

func (startOnly) Wait(c *exec.Cmd, _ chan gorunc.Exit) (int, error) {
	_ = c.Wait() // its status reports the error
	return exitStatus(c.ProcessState.Sys().(syscall.WaitStatus)), nil
}

// exitStatus returns the status that containerd's reaper reports.
func exitStatus(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
