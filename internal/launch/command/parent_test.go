package command

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/testutil"
)

func TestMain(m *testing.M) {
	// The command's parent is this program, started again.
	if len(os.Args) == 2 && os.Args[1] == ParentArg {
		os.Exit(ParentMain())
	}
	os.Exit(m.Run())
}

// keep runs a shell script under a command parent.
func keep(t *testing.T, script string) *Parent {
	t.Helper()
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no shell")
	}
	var output bytes.Buffer
	k, err := start(program{Path: shell, Args: []string{"sh", "-c", script}}, os.Environ(), nil, &output, &output)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (p *Parent) answer(t *testing.T) outcome {
	t.Helper()
	select {
	case result := <-p.result:
		return result
	case <-time.After(20 * time.Second):
		t.Fatal("the command does not end")
		return outcome{}
	}
}

// awaitFile waits for a file that the command writes.
func awaitFile(t *testing.T, path string) {
	t.Helper()
	testutil.Eventually(t, "the command writes "+path, func() bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

func TestParentReturnsExitCode(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -9 $$": 137} {
		k := keep(t, script)
		if got := k.answer(t); got.Code != want || got.Error != "" {
			t.Errorf("%q: %+v, want code %d", script, got, want)
		}
		k.Wait()
	}
}

func TestRunReportsKilledCommand(t *testing.T) {
	for _, test := range []struct {
		script, err string
		code        int
	}{
		{"kill -9 $$", "the command sh was killed (SIGKILL)", 137},
		{"kill -15 $$", "<nil>", 143},
	} {
		var parent *Parent
		ran := Command{Args: []string{"sh", "-c", test.script}, Getenv: os.Getenv, Environ: os.Environ()}
		code, err := ran.Run(t.Context(), func(started *Parent) { parent = started })
		parent.Wait()
		if got := fmt.Sprint(err); got != test.err {
			t.Errorf("%q: error %s, want %s", test.script, got, test.err)
		}
		if got := code + exitcode.Of(err); got != test.code {
			t.Errorf("%q: code %d, want %d", test.script, got, test.code)
		}
	}
}

func TestParentReportsStartError(t *testing.T) {
	k, err := start(program{Path: filepath.Join(t.TempDir(), "none"), Args: []string{"none"}}, nil, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := k.answer(t); !strings.Contains(got.Error, "no such file") {
		t.Errorf("got %+v, want the reason", got)
	}
	k.Wait()
}

func TestParentKillsOrphansOfCommand(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	k := keep(t, "sleep 1000 & echo $! >>"+pids+"; (trap '' TERM; exec sleep 1000) & echo $! >>"+pids+"; exit 3")
	if got := k.answer(t); got.Code != 3 {
		t.Errorf("%+v, want code 3", got)
	}
	k.Wait()
	content, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	left := strings.Fields(string(content))
	if len(left) != 2 {
		t.Fatalf("processes %q, want 2", left)
	}
	for _, text := range left {
		pid, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		if state := linux.ProcessState(pid); state != 0 {
			t.Errorf("process %d is left, state %c", pid, state)
		}
	}
}

func TestParentKillsStubbornCommand(t *testing.T) {
	k := keep(t, "trap '' TERM; while :; do sleep 0.01; done")
	k.End(0)
	k.Wait()
	select {
	case <-k.ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the command does not end")
	}
}

// A second signal ends a command that has a long time to end.
func TestParentShortensTheTimeToEnd(t *testing.T) {
	asked := filepath.Join(t.TempDir(), "asked")
	k := keep(t, "trap 'echo >"+asked+"' TERM; while :; do sleep 0.01; done")
	t.Cleanup(func() { _ = k.process.Process.Kill() }) // ends the command, too
	k.End(24 * time.Hour)
	awaitFile(t, asked)
	k.End(0)
	if got := k.answer(t); got.Code != 137 {
		t.Errorf("%+v, want code 137", got)
	}
	k.Wait()
}

// A process in the background that ignores SIGTERM does not hold a command that has
// ended.
func TestParentEndsAfterItsCommand(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	k := keep(t, "trap 'exit 3' TERM; (trap '' TERM; echo >"+ready+"; exec sleep 1000) & while :; do sleep 0.01; done")
	t.Cleanup(func() { k.End(0) })
	awaitFile(t, ready)
	k.End(24 * time.Hour)
	if got := k.answer(t); got.Code != 3 {
		t.Errorf("%+v, want code 3", got)
	}
	k.Wait()
}

// A program in a shell has its time to end, although the shell dies of SIGTERM.
func TestProgramOfKilledShellHasTimeToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := make(chan unix.WaitStatus, 1)
		status <- unix.WaitStatus(unix.SIGTERM)
		began := time.Now()
		endDescendants(24*time.Hour, nil, status, nil)
		if took := time.Since(began).Truncate(time.Second); took != killedGrace+killLimit {
			t.Errorf("it has %s to end, want %s", took-killLimit, killedGrace)
		}
		if len(status) == 0 {
			t.Error("the exit code is lost")
		}
	})
}

func TestOrphansOfKilledParentEnd(t *testing.T) {
	if err := linux.BecomeSubreaper(); err != nil {
		t.Fatal(err)
	}
	pidFile := filepath.Join(t.TempDir(), "pid")
	k := keep(t, "sh -c 'sleep 1000 & echo $! >"+pidFile+".new; mv "+pidFile+".new "+pidFile+"; wait'; :")
	deadline := time.Now().Add(20 * time.Second)
	var content []byte
	for len(content) == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the command does not start")
		}
		content, _ = os.ReadFile(pidFile)
	}
	if err := unix.Kill(k.process.Process.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := k.answer(t); !strings.Contains(got.Error, "killed") {
		t.Errorf("%+v, want the error of the parent's death", got)
	}
	k.Wait()
	EndOrphans(0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		t.Fatal(err)
	}
	if state := linux.ProcessState(pid); state != 0 {
		t.Errorf("process %d is left, state %c", pid, state)
	}
}

func TestEndOrphansSparesGivenChild(t *testing.T) {
	process := exec.Command("sleep", "1000")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	defer process.Wait() //nolint:errcheck // it is killed
	defer process.Process.Kill()
	EndOrphans(process.Process.Pid)
	if state := linux.ProcessState(process.Process.Pid); state == 0 || state == linux.ProcessZombie {
		t.Errorf("the process has ended, state %c", state)
	}
}
