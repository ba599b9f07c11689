package mounts

import (
	"archive/tar"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/fuse"
	"berth.dev/berth/runtime/internal/fuzzbound"
	"berth.dev/berth/runtime/internal/linux"
)

// FuzzMessages sends two messages with descriptors to a server: as requests, and
// as what it kept before it was restarted. No descriptor may be left open.
func FuzzMessages(f *testing.F) {
	path := layerOf(f, tar.Header{Typeflag: tar.TypeReg, Name: "file"})
	message := func(content any) []byte {
		text, err := json.Marshal(content)
		if err != nil {
			f.Fatal(err)
		}
		return text
	}
	mount := Request{ID: "a", Layers: []string{path}}
	for _, count := range []uint8{0, 1, 2, 3, 17} {
		f.Add(message(mount), message(Request{ID: "b", Login: true}), count, false)
		f.Add(message(keptMessage{ID: "a", Data: &mount}), message(keptMessage{ID: "b", Data: &Request{Login: true}}), count, true)
		f.Add(message(keptMessage{}), []byte("{"), count, true)
	}
	f.Fuzz(func(t *testing.T, first, second []byte, count uint8, resume bool) {
		fuzzbound.Watch(t)
		// Any other path is a file of this machine.
		for _, text := range [][]byte{first, second} {
			var request Request
			var kept keptMessage
			_ = json.Unmarshal(text, &request)
			if json.Unmarshal(text, &kept); kept.Data != nil {
				request.Layers = append(request.Layers, kept.Data.Layers...)
			}
			if slices.ContainsFunc(request.Layers, func(layer string) bool { return layer != path }) {
				return
			}
		}
		before := descriptors(t)
		client, server := sockets(t)
		stop := make(chan struct{})
		go func() { // answers, until the server has closed its end
			defer close(stop)
			for {
				var answer reply
				files, err := linux.ReceivePacket(client, &answer)
				linux.CloseAll(files)
				if err != nil {
					return
				}
			}
		}()
		for _, text := range [][]byte{first, second} {
			if len(text) > 0 && len(text) < 100<<10 {
				sendRaw(t, client, text, int(count)%20)
			}
		}
		if err := client.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		s := NewServer(server, nil, slog.New(slog.DiscardHandler), func(string) {})
		if resume {
			s = NewServer(nil, server, slog.New(slog.DiscardHandler), func(string) {})
			_ = s.Resume()
		} else {
			_ = s.Run(t.Context())
		}
		server.Close()
		<-stop
		client.Close()
		s.group.Wait()
		if after := descriptors(t); after > before {
			t.Errorf("%d descriptors are open, and were %d", after, before)
		}
	})
}

// sendRaw sends a message with the kernel's ends of no mount.
func sendRaw(t *testing.T, to interface {
	WriteMsgUnix(b, oob []byte, addr *net.UnixAddr) (n, oobn int, err error)
}, text []byte, count int) {
	t.Helper()
	var fds []int
	for i := range count {
		fd, err := unix.MemfdCreate("passed", unix.MFD_CLOEXEC)
		if err == nil && i == 1 {
			err = unix.Ftruncate(fd, fuse.SlotsSize)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	var rights []byte
	if count > 0 {
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := to.WriteMsgUnix(text, rights, nil); err != nil {
		t.Fatal(err)
	}
}

func sockets(t *testing.T) (client, server *net.UnixConn) {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if client, err = Conn(ends[0]); err == nil {
		server, err = Conn(ends[1])
	}
	if err != nil {
		t.Fatal(err)
	}
	return client, server
}

func descriptors(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}
