package fastpath

import (
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/testutil"
)

// Without a free descriptor a Switch neither spins nor loses the connection: it
// tries again a few times a second.
func TestNoDescriptorsToAccept(t *testing.T) {
	l := newLab(t, labConfig{})
	h := l.hosts[0]
	began := time.Now()
	var before unix.Rlimit
	limit := func(set, old *unix.Rlimit) {
		if err := unix.Prlimit(h.process.Process.Pid, unix.RLIMIT_NOFILE, set, old); err != nil {
			t.Fatal(err)
		}
	}
	limit(nil, &before)
	limit(&unix.Rlimit{Cur: 0, Max: before.Max}, nil)
	var conn net.Conn
	l.hosts[1].ns.try(t, func() (err error) {
		conn, err = net.DialTimeout("tcp", h.endpoints[0].String(), labTimeout)
		return err
	})
	defer conn.Close()
	var tried uint64
	testutil.Eventually(t, "the Switch tries again", func() bool {
		tried = h.counters()[countNames[countShortage]]
		return tried > 2
	})
	if most := 1 + uint64(time.Since(began)/shortage); tried > most {
		t.Errorf("the Switch tried %d times to accept a connection, want %d at most", tried, most)
	}
	limit(&before, nil)
	if err := conn.SetReadDeadline(time.Now().Add(labTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, challengeLen)); err != nil {
		t.Errorf("the connection is not served when there are descriptors again: %v", err)
	}
}
