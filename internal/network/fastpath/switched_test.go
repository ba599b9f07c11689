package fastpath

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestAnswerForFailedSocket: the answer to a connect was lost, and the socket has failed
// since. Only a socket that was switched before it was connected can have failed.
func TestAnswerForFailedSocket(t *testing.T) {
	for _, test := range []struct {
		name     string
		blocking bool
		limit    unix.Timeval
		want     unix.Errno
	}{
		{"non-blocking", false, unix.Timeval{}, unix.EINPROGRESS},
		{"blocking", true, unix.Timeval{}, 0},
		{"blocking, with SO_SNDTIMEO", true, unix.Timeval{Usec: 100_000}, unix.EINPROGRESS},
	} {
		// A socket that has failed is in the same state as one that is not connected.
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(socket)
		if err := unix.SetNonblock(socket, !test.blocking); err != nil {
			t.Fatal(err)
		}
		if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &test.limit); err != nil {
			t.Fatal(err)
		}
		if got := (&record{outside: true}).progress(socket); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}
