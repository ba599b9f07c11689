package script

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/internal/job/queue"
)

// written is a batch script on disk. folder is the folder of its object.
type written struct{ folder, path string }

// write writes a batch script and the object's script as package queue and slurmd would.
func write(t *testing.T, d Description) written {
	t.Helper()
	job, err := Build(d)
	if err != nil {
		t.Fatal(err)
	}
	w := written{folder: queue.Folder(d.State, d.UID)}
	if err := os.MkdirAll(w.folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.folder, queue.UserScriptName), job.UserScript, 0o600); err != nil {
		t.Fatal(err)
	}
	// slurmd runs a copy of the batch script.
	w.path = filepath.Join(t.TempDir(), "slurm_script")
	if err := os.WriteFile(w.path, job.Script, 0o700); err != nil {
		t.Fatal(err)
	}
	return w
}

// run runs the batch script as slurmd does, with an environment and arguments.
func (w written) run(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	command := exec.CommandContext(t.Context(), w.path, args...)
	command.Env = append(os.Environ(), env...)
	command.Stdin = strings.NewReader("the input\n")
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), command.ProcessState.ExitCode()
}

func (w written) read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.folder, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func withScript(t *testing.T, text string) Description {
	d := describe(t)
	d.Script = []byte(text)
	return d
}

func TestScriptRunsUnchanged(t *testing.T) {
	text := "#!/bin/bash -eu\n#SBATCH -J 'ü ß'\necho \"$0|$#|$2|$SLURM_JOB_ID\" 'süß' \"q\\\"\"\ncat <<'EOF'\n$HOME `x` \\\nEOF\nread -r line; echo \"$line\"\n" +
		"set -o | grep -e errexit -e nounset\nsha256sum \"$0\"\nf\n" + "# " + strings.Repeat("x", 1<<20) + "\nexit 7"
	w := write(t, withScript(t, text))
	stdout, stderr, code := w.run(t, []string{"SLURM_JOB_ID=12", "BASH_FUNC_f%%=() {  echo exported\n}"}, "a", "b c")
	path := filepath.Join(w.folder, "slurm_script")
	for _, want := range []string{path + "|2|b c|12 süß q\"\n", "$HOME `x` \\\n", "the input\n", "errexit        \ton\n", "nounset        \ton\n", "exported\n"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in:\n%s%s", want, stdout, stderr)
		}
	}
	if code != 7 || stderr != "" || w.read(t, "slurm_script") != text {
		t.Errorf("exit code %d, %q", code, stderr)
	}
	if end := w.read(t, queue.EndName); !strings.HasPrefix(end, "7 ") || strings.Count(w.read(t, queue.StartsName), "\n") != 1 {
		t.Errorf("recorded %q", end)
	}
}

// Users set variables of their jobs with '#SBATCH --export=ALL,id=x'.
func TestScriptHasTheVariablesOfItsJob(t *testing.T) {
	env := []string{"SLURM_JOB_ID=12"}
	want := ""
	for _, name := range strings.Fields("canary child code end folder given id list name node owner part pending received signal signals status value why") {
		env = append(env, name+"=own")
		want += name + "=own\n"
	}
	w := write(t, withScript(t, "#!/bin/sh\nenv | LC_ALL=C sort | grep -e =own$ -e ^berth_\n"))
	if stdout, stderr, code := w.run(t, env); stdout != want || code != 0 {
		t.Errorf("%q, want %q; %s (exit code %d)", stdout, want, stderr, code)
	}
}

func TestSecondJobDoesNothingAndRequeuedJobRuns(t *testing.T) {
	w := write(t, withScript(t, "#!/bin/sh\necho ran\n"))
	first := []string{"SLURM_JOB_ID=12"}
	if stdout, stderr, code := w.run(t, first); stdout != "ran\n" || code != 0 {
		t.Fatalf("%q, %q, %d", stdout, stderr, code)
	}
	if stdout, stderr, code := w.run(t, []string{"SLURM_JOB_ID=13"}); stdout != "" || code != 69 || !strings.Contains(stderr, "this object already has job 12, so job 13") {
		t.Errorf("a second job: %q, %q, %d", stdout, stderr, code)
	}
	if stdout, _, code := w.run(t, first); stdout != "ran\n" || code != 0 || strings.Count(w.read(t, queue.StartsName), "\n") != 2 {
		t.Errorf("the first job again: %q, %d", stdout, code)
	}
}

// The paths of an object are for its script only.
func TestPathsOfAnObject(t *testing.T) {
	libraries := t.TempDir()
	if err := os.WriteFile(filepath.Join(libraries, "libc.so.6"), []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, libraries, job, want string }{
		{"/a b/$HOME'`x`\"", "", "/usr/bin:/bin", "/a b/$HOME'`x`\" unset\n"},
		{"", "", "/of/the/job", "/of/the/job unset\n"},
		{"/opt", "/lib/c", "/of/the/job", "/opt /lib/c\n"},
	} {
		d := withScript(t, "#!/bin/sh\necho \"$PATH ${LD_LIBRARY_PATH-unset}\"\n")
		d.Path, d.LibraryPath = c.path, c.libraries
		stdout, stderr, code := write(t, d).run(t, []string{"SLURM_JOB_ID=12", "PATH=" + c.job})
		if stdout != c.want || stderr != "" || code != 0 {
			t.Errorf("%+v: %q, %q, %d", c, stdout, stderr, code)
		}
	}

	d := withScript(t, "#!/bin/sh\n")
	d.LibraryPath = libraries
	w := write(t, d)
	_, stderr, code := w.run(t, []string{"SLURM_JOB_ID=12"})
	if code != 127 || !strings.Contains(stderr, libraries) || !strings.HasPrefix(w.read(t, queue.EndName), "127 ") {
		t.Errorf("%q, %d", stderr, code)
	}
}

func TestElementsOfAnArrayRunOnce(t *testing.T) {
	w := write(t, withScript(t, "#!/bin/sh\necho ran\n"))
	for _, c := range []struct {
		env  string
		want string
	}{
		{"SLURM_JOB_ID=13 SLURM_ARRAY_JOB_ID=12 SLURM_ARRAY_TASK_ID=1", "ran\n"},
		{"SLURM_JOB_ID=12 SLURM_ARRAY_JOB_ID=12 SLURM_ARRAY_TASK_ID=2", "ran\n"},
		{"SLURM_JOB_ID=15 SLURM_ARRAY_JOB_ID=14 SLURM_ARRAY_TASK_ID=2", ""},
	} {
		if stdout, stderr, _ := w.run(t, strings.Fields(c.env)); stdout != c.want {
			t.Errorf("%s: %q, %q", c.env, stdout, stderr)
		}
	}
}

func TestScriptDoesNotRunWithoutItsFolder(t *testing.T) {
	w := write(t, withScript(t, "#!/bin/sh\necho ran\n"))
	if err := os.RemoveAll(w.folder); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code := w.run(t, []string{"SLURM_JOB_ID=12", "SLURMD_NODENAME=n1"})
	if stdout != "" || code != 69 || !strings.Contains(stderr, "node n1 does not see "+w.folder) || !strings.Contains(stderr, "with --state-dir on") {
		t.Errorf("%q, %q, %d", stdout, stderr, code)
	}

	// The kernel permits no new files in this folder.
	d := withScript(t, "#!/bin/sh\necho ran\n")
	d.State, d.UID = "/proc", "self"
	job, err := Build(d)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.path, job.Script, 0o700); err != nil {
		t.Fatal(err)
	}
	if stdout, stderr, code := w.run(t, []string{"SLURM_JOB_ID=12"}); stdout != "" || code != 73 || !strings.Contains(stderr, "cannot write /proc/self") {
		t.Errorf("%q, %q, %d", stdout, stderr, code)
	}
}

// A full disk does not change the result of the script.
func TestEndThatCannotBeRecorded(t *testing.T) {
	w := write(t, withScript(t, "#!/bin/sh\nrm -rf \"${0%/*}\"\nexit 5\n"))
	_, stderr, code := w.run(t, []string{"SLURM_JOB_ID=12", "SLURMD_NODENAME=n1"})
	if code != 5 || !strings.Contains(stderr, "node n1 cannot record the end of job 12") {
		t.Errorf("%q, %d", stderr, code)
	}
}

// reporting is the environment variable that makes the test binary the script of
// TestSignalReachesTheScriptOnce: it prints the signals that it receives.
const reporting = "REPORT_SIGNALS"

func TestMain(m *testing.M) {
	if os.Getenv(reporting) == "" {
		os.Exit(m.Run())
	}
	received := make(chan os.Signal, 10)
	signal.Notify(received, syscall.SIGUSR1, syscall.SIGINT, syscall.SIGTERM)
	fmt.Println("ready")
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	for {
		select {
		case got := <-received:
			fmt.Println("got", got)
		case <-ended:
			os.Exit(3)
		}
	}
}

// Slurm sends a signal to the batch script only (sbatch --signal=B:USR1), or to all
// processes of a job (scancel). The object's script receives the signal once in both cases.
func TestSignalReachesTheScriptOnce(t *testing.T) {
	// Programs started by this one ignore SIGINT if it was started in the background.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, sent := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGINT, syscall.SIGTERM} {
		for _, toAll := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v to all: %v", sent, toAll), func(t *testing.T) {
				t.Parallel()
				signalOnce(t, write(t, withScript(t, "#!"+program+"\n")), sent, toAll)
			})
		}
	}
}

func signalOnce(t *testing.T, w written, sent syscall.Signal, toAll bool) {
	command := exec.CommandContext(t.Context(), w.path)
	command.Env = append(os.Environ(), "SLURM_JOB_ID=12", reporting+"=yes")
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	output, err := os.Create(filepath.Join(w.folder, "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	command.Stdout, command.Stderr = output, output
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	pid := command.Process.Pid
	defer syscall.Kill(-pid, syscall.SIGKILL)
	await := func(what string, reached func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !reached(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s did not happen; output: %q", what, w.read(t, "output"))
			}
		}
	}
	children := func() []string {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		return strings.Fields(string(text))
	}
	// The batch script is ready once it has started both children and catches the signal.
	await("start", func() bool { return w.read(t, "output") == "ready\n" && len(children()) == 2 && catches(pid, sent) })
	before := children()
	to := pid
	if toAll {
		to = -pid
	}
	if err := syscall.Kill(to, sent); err != nil {
		t.Fatal(err)
	}
	want := "ready\ngot " + sent.String() + "\n"
	await("the signal", func() bool { return strings.HasPrefix(w.read(t, "output"), want) })
	if toAll {
		await("a new canary", func() bool { now := children(); return len(now) == 2 && now[0] == before[1] })
	}
	input.Close()
	_ = command.Wait()
	if code, got := command.ProcessState.ExitCode(), w.read(t, "output"); code != 3 || got != want || !strings.HasPrefix(w.read(t, queue.EndName), "3 ") {
		t.Errorf("exit code %d, output %q", code, got)
	}
	if err := syscall.Kill(-pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("processes are left: %v", err)
	}
}

// catches reports whether a process has a handler for a signal.
func catches(pid int, sent syscall.Signal) bool {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(status), "SigCgt:")
	mask, _ := strconv.ParseUint(strings.Fields(rest + " 0")[0], 16, 64)
	return mask>>(sent-1)&1 == 1
}

func TestScriptKilledBySignal(t *testing.T) {
	w := write(t, withScript(t, "#!/bin/sh\nkill -9 $$\n"))
	if _, stderr, code := w.run(t, []string{"SLURM_JOB_ID=12"}); code != 137 || stderr != "" || !strings.HasPrefix(w.read(t, queue.EndName), "137 ") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}
