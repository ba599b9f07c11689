package linux

import (
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPacketsThatAreRefused checks that a packet that is too long, has too many
// descriptors or is no JSON is an error, and that none of its descriptors stays open.
func TestPacketsThatAreRefused(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	defer writer.Close()
	for name, packet := range map[string]struct {
		text  string
		files int
		want  string
	}{
		"long":  {`"` + strings.Repeat("a", maxPacket) + `"`, 1, "longer than"},
		"files": {`"a"`, MaxPacketFiles + 4, "descriptors"},
		"text":  {`a`, 1, "invalid character"},
	} {
		ends := packetSockets(t)
		var rights []byte
		fds := make([]int, packet.files)
		for i := range fds {
			fds[i] = int(reader.Fd())
		}
		rights = unix.UnixRights(fds...)
		before := openFiles(t)
		if _, _, err := ends[0].WriteMsgUnix([]byte(packet.text), rights, nil); err != nil {
			t.Fatal(err)
		}
		var text string
		files, err := ReceivePacket(ends[1], &text)
		if err == nil || !strings.Contains(err.Error(), packet.want) || files != nil {
			t.Errorf("%s: %q with %d files, %v, want %q", name, text, len(files), err, packet.want)
		}
		if after := openFiles(t); after != before {
			t.Errorf("%s: %d open files, and %d before", name, after, before)
		}
	}
}

func packetSockets(t *testing.T) (ends [2]*net.UnixConn) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, fd := range pair {
		file := os.NewFile(uintptr(fd), "end")
		conn, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		ends[i] = conn.(*net.UnixConn)
	}
	return ends
}

func openFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
