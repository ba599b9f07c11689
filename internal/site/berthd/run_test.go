package berthd

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestReadinessIsReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	if err := notifySystemd(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 100)
	n, err := manager.Read(said)
	if err != nil || string(said[:n]) != "READY=1" {
		t.Errorf("got %q, %v", said[:n], err)
	}
	if left, there := os.LookupEnv("NOTIFY_SOCKET"); there {
		t.Errorf("what berthd starts has NOTIFY_SOCKET=%s", left)
	}
	if err := notifySystemd(); err != nil {
		t.Errorf("without a service manager: %v", err)
	}
}

// By this exit code the units know that a restart would change nothing.
func TestWrongConfigurationHasItsOwnStatus(t *testing.T) {
	path := filepath.Join(t.TempDir(), "site.yaml")
	if err := os.WriteFile(path, []byte("clutser: alps\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"run", "etcd"} {
		if status := Main(context.Background(), []string{command, "--config", path}); status != 78 {
			t.Errorf("berthd %s: status %d, want 78", command, status)
		}
	}
}
