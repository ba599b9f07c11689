package site

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair are the two ends of a connection.
func pair(t *testing.T) (*net.UnixConn, *net.UnixConn) {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "socket"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.DialUnix("unix", nil, listener.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	server, err := listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func TestWhoSaysNothingGetsAnError(t *testing.T) {
	for name, end := range map[string]func(client, server *net.UnixConn){
		"silent": func(_, server *net.UnixConn) { server.SetDeadline(time.Now()) },
		"closed": func(client, _ *net.UnixConn) { client.Close() },
		"half":   func(client, _ *net.UnixConn) { client.Write([]byte("berthd/1 sta")); client.Close() },
		"endless": func(client, _ *net.UnixConn) {
			go client.Write(make([]byte, 4*maxMessage))
		},
	} {
		client, server := pair(t)
		end(client, server)
		if m, files, err := ReadMessage(server); err == nil || files != nil {
			t.Errorf("%s: %v, %v", name, m, files)
		}
	}
}

func TestMoreDescriptorsThanExpectedAreClosed(t *testing.T) {
	client, server := pair(t)
	before := descriptorsOpen(t)
	go func() {
		for range 3 {
			file, err := client.File()
			if err != nil {
				return
			}
			client.WriteMsgUnix([]byte("x"), unix.UnixRights(int(file.Fd()), int(file.Fd())), nil)
			file.Close()
		}
		client.CloseWrite()
	}()
	if _, files, err := ReadMessage(server); err == nil || files != nil {
		t.Errorf("files %v", files)
	}
	if after := descriptorsOpen(t); after > before+1 {
		t.Errorf("%d descriptors are open, before there were %d", after, before)
	}
}

func descriptorsOpen(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
