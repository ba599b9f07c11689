package integration

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const oneUIDVariable = "BERTH_TEST_ONE_UID"

// oneUID reports whether the tests run with a single uid mapped.
func oneUID() bool { return os.Getenv(oneUIDVariable) != "" }

// A user without subordinate ids: images and containers that ask for other
// users work, and everything belongs to the one.
func TestOneUID(t *testing.T) {
	if !oneUID() {
		t.Skip("runs in a namespace with one uid, which TestMain makes")
	}
	n := startNode(t)
	n.helperImage()
	p := n.runPod("one")
	id := p.run("sleeper", 100<<20, "sleep")
	if got, err := n.exec(id, "id"); err != nil || !strings.HasPrefix(got, "0:0 ") {
		t.Errorf("exec runs as %q, %v", got, err)
	}
	text, err := os.ReadFile("/proc/self/gid_map")
	if err != nil || len(strings.Fields(string(text))) != 3 {
		t.Errorf("gid_map %q, %v", text, err)
	}
}

// ignoreOwners answers 0 to what changes owners, as a node does in this mode,
// for this process and all that it starts.
func ignoreOwners() error {
	var ignored []uint32
	for _, call := range []int{
		unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID,
		unix.SYS_SETGROUPS, unix.SYS_SETRESUID, unix.SYS_SETRESGID, unix.SYS_SETFSUID, unix.SYS_SETFSGID,
	} {
		ignored = append(ignored, uint32(call))
	}
	if runtime.GOARCH == "amd64" {
		ignored = append(ignored, 92, 94) // chown, lchown
	}
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}}
	for _, call := range ignored {
		program = append(program,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO})
	}
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&filter)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return errno
	}
	return nil
}
