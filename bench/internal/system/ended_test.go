package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// programs writes scripts as programs, and returns an environment with them on PATH.
func programs(t *testing.T, scripts map[string]string) (dir string, env []string) {
	t.Helper()
	dir = t.TempDir()
	for _, folder := range []string{"bin", "tmp"} {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(dir, "bin", name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir, []string{"PATH=" + dir + "/bin:/usr/bin:/bin", "TMPDIR=" + dir + "/tmp", "DIR=" + dir}
}

// await waits until a condition holds.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("wait for %s: it takes too long", what)
		}
	}
}

// ended runs a script, ends it like a timeout once the file "started" exists, and returns
// its exit code and output.
func ended(t *testing.T, dir string, env, argv []string) (int, string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	command.Env = env
	var said strings.Builder
	command.Stdout, command.Stderr = &said, &said
	command.WaitDelay = time.Minute
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "the program", func() bool { _, err := os.Stat(filepath.Join(dir, "started")); return err == nil })
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := command.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return command.ProcessState.ExitCode(), said.String()
}

// gone waits until the process whose ID is in a file has ended.
func gone(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the end of "+filepath.Base(path), func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ") // its parent may not reap it
	})
}

// TestEndedApptainer: an ended trial of Apptainer leaves no process and no unpacked file.
func TestEndedApptainer(t *testing.T) {
	dir, env := programs(t, map[string]string{"apptainer": `echo x >"${APPTAINER_TMPDIR:-$TMPDIR}/unpacked"
sleep 1000 & echo $! >"$DIR/child"
echo $$ >"$DIR/self"; : >"$DIR/started"; wait`})
	for name, script := range map[string]string{"pull": pullScript, "pipeline": pipelineScript} {
		code, said := ended(t, dir, env, []string{"sh", "-c", script, "sh", "apptainer", dir, "x.sif", "r/x"})
		if code != 143 {
			t.Errorf("%s: exit code %d: %s", name, code, said)
		}
		gone(t, filepath.Join(dir, "child"))
		gone(t, filepath.Join(dir, "self"))
		_ = os.Remove(filepath.Join(dir, "tmp", "unpacked"))
		if left, err := os.ReadDir(filepath.Join(dir, "tmp")); err != nil || len(left) > 0 {
			t.Errorf("%s: left behind: %v, %v", name, left, err)
		}
		_ = os.Remove(filepath.Join(dir, "started"))
	}
}

// TestPullScript: the script prints when packing began and ended, and fatal errors.
func TestPullScript(t *testing.T) {
	dir, env := programs(t, map[string]string{
		"apptainer": `echo "INFO: Creating SIF file..."; [ "$4" != docker://r/no ] || { echo "FATAL: no such image"; exit 255; }; echo x >"$3"`,
	})
	for image, want := range map[string]string{"yes": "", "no": "FATAL: no such image"} {
		command := exec.Command("sh", "-c", pullScript, "sh", "apptainer", dir, image, "r/"+image)
		command.Env = env
		var said strings.Builder
		command.Stderr = &said
		out, err := command.Output()
		if times, wrong := readTimes(string(out)); (err == nil) != (want == "") || wrong != nil || len(times) != 2 || strings.TrimSpace(said.String()) != want {
			t.Errorf("%s: %v, %v, %v, %q", image, err, wrong, times, said.String())
		}
	}
}

// TestEndedPodman: neither the container nor bypass4netns is left.
func TestEndedPodman(t *testing.T) {
	dir, env := programs(t, map[string]string{
		// Like a container whose first program ignores signals: only "rm" ends it.
		"podman": `case "$*" in
*" rm "*) kill -KILL "$(cat "$DIR/container")" ;;
*" run "*) trap : TERM; sleep 1000 & echo $! >"$DIR/container"; : >"$DIR/started"; until ! kill -0 $! 2>/dev/null; do wait; done; exit 137 ;;
esac`,
		"bypass4netns": `echo $$ >"$DIR/bypass"; exec python3 -c 'import socket, sys, time
s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); time.sleep(1000)' "$2"`,
	})
	if _, err := exec.LookPath("python3"); err != nil {
		missing(t, "python3")
	}
	for _, network := range []string{"slirp4netns", "bypass4netns"} {
		d := &podman{network: network}
		if code, said := ended(t, dir, env, append(d.script(d.run(true)), "image")); code != 143 {
			t.Errorf("%s: exit code %d: %s", network, code, said)
		}
		gone(t, filepath.Join(dir, "container"))
		if network == "bypass4netns" {
			gone(t, filepath.Join(dir, "bypass"))
		}
		_ = os.Remove(filepath.Join(dir, "started"))
	}
}

// TestBypassed: a container whose connections slirp4netns made fails; otherwise the exit
// code is the container's.
func TestBypassed(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		missing(t, "python3")
	}
	const says = `exec python3 -c 'import os, socket, sys, time
s = socket.socket(socket.AF_UNIX)
print(os.environ["SAYS"], flush=True); s.bind(sys.argv[1]); time.sleep(1000)' "$2"`
	_, env := programs(t, map[string]string{"podman": `case "$*" in *" run "*) echo it; exit "$CODE" ;; esac`, "bypass4netns": says})
	const yes = "level=info msg=\"bypassed connect socket destAddr=10.0.0.2:80\""
	for name, test := range map[string]struct {
		network, says, code string
		connects            bool
		want                int
	}{
		"bypassed":     {"bypass4netns", yes, "0", true, 0},
		"not bypassed": {"bypass4netns", "level=info msg=ready", "0", true, 1},
		"no network":   {"bypass4netns", "level=info msg=ready", "0", false, 0},
		"failed":       {"bypass4netns", yes, "7", true, 7},
		"slirp4netns":  {"slirp4netns", "", "7", true, 7},
	} {
		d := &podman{network: test.network}
		argv := append(d.script(d.run(test.connects)), "image")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		command := exec.CommandContext(ctx, argv[0], argv[1:]...)
		command.Env = append(env, "SAYS="+test.says, "CODE="+test.code)
		var said strings.Builder
		command.Stdout, command.Stderr = io.Discard, &said
		err := command.Run()
		cancel()
		if code := command.ProcessState.ExitCode(); code != test.want || (name == "not bypassed") != strings.Contains(said.String(), "no connection on the host") {
			t.Errorf("%s: exit code %d, %v: %s", name, code, err, said.String())
		}
	}
}
