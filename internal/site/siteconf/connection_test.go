package siteconf

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/testutil/fuzzbound"
)

// pair returns both ends of a connection.
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

func TestSilentClientGetsError(t *testing.T) {
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

// FuzzReadMessage checks that ReadMessage ends, for any text in any number of pieces
// and with any number of descriptors, and that all descriptors are closed or
// returned.
func FuzzReadMessage(f *testing.F) {
	f.Add([]byte("berthd/1 ok\nrun 1\n\n"), uint8(0), uint8(3))
	f.Add([]byte("berthd/1 ok\n\n"), uint8(4), uint8(2))
	f.Add([]byte("berthd/1 ok\n\nberthd/1 ok\n\n"), uint8(1), uint8(4))
	f.Add([]byte("berthd/1 sta"), uint8(3), uint8(1))
	f.Fuzz(func(t *testing.T, text []byte, piece, each uint8) {
		fuzzbound.Watch(t)
		client, server := pair(t)
		before := descriptorsOpen(t)
		written := make(chan error, 1)
		go func() { written <- writeInPieces(client, text, int(piece)+1, int(each)%6) }()
		m, files, err := ReadMessage(server)
		if err != nil && files != nil {
			t.Errorf("%q: %v, and %d descriptors", text, err, len(files))
		}
		if len(files) > maxDescriptors {
			t.Errorf("%q: %d descriptors", text, len(files))
		}
		if again, decoded := decode(m.Encode()); err == nil && (decoded != nil || again.Verb != m.Verb) {
			t.Errorf("%q became %v, then %v: %v", text, m, again, decoded)
		}
		linux.CloseAll(files)
		server.Close()
		<-written
		// Both ends are closed by now.
		if after := descriptorsOpen(t); after > before-2 {
			t.Errorf("%q: %d descriptors are open, and were %d", text, after, before)
		}
	})
}

// writeInPieces writes until the other side closes the connection, possibly before it
// has read everything.
func writeInPieces(conn *net.UnixConn, text []byte, piece, descriptors int) error {
	defer conn.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	var rights []byte
	if descriptors > 0 {
		rights = unix.UnixRights(slices.Repeat([]int{int(null.Fd())}, descriptors)...)
	}
	for part := range slices.Chunk(text, piece) {
		if _, _, err := conn.WriteMsgUnix(part, rights, nil); err != nil {
			return err
		}
	}
	return nil
}
