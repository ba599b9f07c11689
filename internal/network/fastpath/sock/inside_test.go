package sock

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/testutil"
)

// TestDeferredHandshakeIsAwaited connects in a namespace whose packets are received on any
// processor of the machine, so that most handshakes are not over when connect returns.
func TestDeferredHandshakeIsAwaited(t *testing.T) {
	testutil.Require(t, testutil.Root)
	if runtime.NumCPU() < 2 {
		t.Skip("one processor receives all packets")
	}
	const all = 1000
	connected := 0
	linux.OnNewThread(func() {
		if err := steerPackets(); err != nil {
			t.Error(err)
			return
		}
		for range all {
			listener, err := listenInside(1)
			if err != nil {
				t.Error(err)
				return
			}
			bell, errno, err := connectInside(listener)
			if err != nil {
				t.Error(err)
			}
			if errno == 0 {
				connected++
			}
			Reset(bell)
			unix.Close(listener)
		}
	})
	// A hypervisor may stop a processor at any time.
	if connected < all/2 {
		t.Errorf("%d of %d handshakes were awaited", connected, all)
	}
}

func TestFullQueueIsNoDeferredHandshake(t *testing.T) {
	testutil.Require(t, testutil.Root)
	linux.OnNewThread(func() {
		if err := steerPackets(); err != nil {
			t.Error(err)
			return
		}
		listener, err := listenInside(0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(listener)
		var last unix.Errno
		for range 10 {
			bell, errno, err := connectInside(listener)
			if err != nil {
				t.Error(err)
				return
			}
			defer unix.Close(bell)
			last = errno
		}
		if last != unix.EALREADY {
			t.Errorf("connect to a full queue: %v", last)
		}
	})
}

// steerPackets moves the thread into a network namespace whose loopback is up, and whose
// packets are received on any processor.
func steerPackets() error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil { // of the new namespace
		return err
	}
	if err := testutil.SetUpLink("lo"); err != nil {
		return err
	}
	return os.WriteFile("/sys/class/net/lo/queues/rx-0/rps_cpus", []byte("3"), 0)
}

func listenInside(backlog int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return -1, err
	}
	return fd, unix.Listen(fd, backlog)
}

func connectInside(listener int) (int, unix.Errno, error) {
	to, _ := Local(listener)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, 0, err
	}
	return fd, ConnectInside(fd, Raw(to, false)), nil
}
