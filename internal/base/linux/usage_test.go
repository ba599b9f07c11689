package linux

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestUsageOf(t *testing.T) {
	kept := make([]byte, 32<<20)
	for i := range kept {
		kept[i] = byte(i)
	}
	before, err := UsageOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if before.Memory < 32<<20 {
		t.Errorf("%d bytes, with 32 MiB in use", before.Memory)
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		for i := range kept {
			kept[i]++
		}
		now, err := UsageOf(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if now.CPU > before.CPU {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("work takes no time")
		}
	}
}

func TestUsageOfNobody(t *testing.T) {
	if _, err := UsageOf(1 << 30); err == nil {
		t.Error("a process that is not there uses something")
	}
	if got := Arguments(1 << 30); got != nil {
		t.Errorf("it was started with %q", got)
	}
	if got := Arguments(os.Getpid()); len(got) != len(os.Args) || got[0] != os.Args[0] {
		t.Errorf("this one was started with %q", got)
	}
}

// TestSocketInDeepFolder uses a path that is too long for the address of a socket.
func TestSocketInDeepFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), strings.Repeat("deep/", 40))
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := ListenIn(folder, "socket")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if info, err := os.Stat(filepath.Join(folder, "socket")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			_, _ = conn.Write([]byte("hello"))
			conn.Close()
		}
	}()
	conn, err := DialIn(t.Context(), folder, "socket")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if said, err := io.ReadAll(conn); err != nil || string(said) != "hello" {
		t.Errorf("%q, %v", said, err)
	}
}
