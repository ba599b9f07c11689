package sandbox

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"berth.dev/berth/internal/base/linux"
)

// A shim's first process forks the shim's server. A fork that is stopped before it has
// become another program is two levels below containerd, and containerd waits for it. The
// programs of a pod are somewhere else.
func TestPartsOfNodeAreAllThatItsProgramsStart(t *testing.T) {
	dir := t.TempDir()
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(shell)
	if err != nil {
		t.Fatal(err)
	}
	ofPod := filepath.Join(dir, "sh")
	if err := os.WriteFile(ofPod, program, 0o755); err != nil {
		t.Fatal(err)
	}
	// Each process prints its id and starts the next; the last one waits.
	const script = `echo $$
if [ $# = 0 ]; then read line; exit 0; fi
next=$1; shift
"$next" "$0" "$@"
exit 0`
	file := filepath.Join(dir, "script")
	if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	want := []bool{true, true, true, false, false} // without the command itself
	command := exec.Command(shell, file, shell, shell, shell, ofPod, ofPod)
	pids := startPrinting(t, command, 1+len(want))
	parents, err := linux.Parents()
	if err != nil {
		t.Fatal(err)
	}
	r := &reaper{commands: map[int]string{pids[0]: "containerd"}}
	for i, pid := range pids[1:] {
		if r.isPart(pid, parents) != want[i] {
			t.Errorf("process %d below containerd is a part of the node: %v", i+1, !want[i])
		}
	}
}

// The init of a container is stopped while runc waits for it. Its program is a copy of runc
// in another folder than berth.
func TestInitOfContainerIsPartOfNode(t *testing.T) {
	dir := t.TempDir()
	program, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"runc": program, "other": program, "init": []byte("echo $$; read line || :\n")} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name, file string
		part       bool
	}{
		{"init of runc", "runc", true},
		{"program of a container with such arguments", "other", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			// The shell stands for containerd, and its child for a shim.
			command := exec.Command("bash", "-c", `echo $$; bash -c 'echo $$; (exec -a berth-runc "$0" init); exit $?' "$0"; exit $?`, filepath.Join(dir, test.file))
			command.Dir = dir
			pids := startPrinting(t, command, 3)
			parents, err := linux.Parents()
			if err != nil {
				t.Fatal(err)
			}
			r := &reaper{commands: map[int]string{pids[0]: "containerd"}}
			if got := r.isPart(pids[2], parents); got != test.part {
				t.Errorf("it is a part of the node: %v", got)
			}
		})
	}
}

// startPrinting starts a command whose processes print count process ids, and end when their
// input does. It returns the ids.
func startPrinting(t *testing.T, command *exec.Cmd, count int) []int {
	t.Helper()
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close()
		if err := command.Wait(); err != nil {
			t.Error(err)
		}
	})
	var pids []int
	for lines := bufio.NewReader(output); len(pids) < count; {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// Pods whose users are not root inside, and other users of the host, cannot connect to the
// socket that takes the filters of containers.
func TestSocketForFiltersIsOnlyForRoot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fast-path.sock")
	listener, err := listenAt(path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := info.Mode(), os.ModeSocket|0o600; got != want {
		t.Errorf("mode of the socket: %v, want %v", got, want)
	}
}
