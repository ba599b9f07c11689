package linux

import (
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNoDescriptorIsLostToSignals has signals interrupt calls while they are answered, as
// kernels before Linux 5.19 do. Each successful answer must arrive.
func TestNoDescriptorIsLostToSignals(t *testing.T) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, unix.SIGUSR1)
	defer signal.Stop(caught)
	source, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(source)
	var caller, arrived atomic.Int64
	listening, ended := make(chan int, 1), make(chan struct{})
	go OnNewThread(func() {
		defer close(ended)
		listener, err := interruptibleFilter()
		if err != nil {
			t.Error(err)
			listener = -1
		}
		caller.Store(int64(unix.Gettid()))
		listening <- listener
		if listener < 0 {
			return
		}
		for {
			fd, _, errno := unix.Syscall(unix.SYS_ACCEPT4, 0, 0, 0)
			if errno != 0 {
				return
			}
			unix.Close(int(fd))
			arrived.Add(1)
		}
	})
	listener := <-listening
	if listener < 0 {
		return
	}
	defer unix.Close(listener)
	go func() {
		for {
			select {
			case <-ended:
				return
			default:
				_ = unix.Tgkill(os.Getpid(), int(caller.Load()), unix.SIGUSR1)
				_ = unix.Nanosleep(&unix.Timespec{Nsec: 20_000}, nil)
			}
		}
	}()
	// These questions about calls make the caller wait for the kernel's lock.
	for range 2 {
		go func() {
			for {
				select {
				case <-ended:
					return
				default:
					NotificationWaits(listener, 1)
				}
			}
		}()
	}
	const n = 20000
	answered := 0
	runtime.LockOSThread() // it ends with this thread's mask
	var all unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^uint64(0)
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, nil); err != nil {
		t.Fatal(err)
	}
	for {
		ready := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil {
			t.Fatal(err)
		}
		if ready[0].Revents&unix.POLLHUP != 0 {
			break
		}
		var call Notification
		if ReceiveNotification(listener, &call) != nil {
			continue
		}
		if answered == n {
			_ = AnswerNotification(listener, call.ID, 0, unix.EPERM)
			continue
		}
		if AnswerWithDescriptor(listener, call.ID, source, true) == nil {
			answered++
		}
	}
	<-ended
	if got := arrived.Load(); got != n {
		t.Errorf("%d of %d answers arrived", got, n)
	}
}

// interruptibleFilter installs a filter whose listener answers accept4, without the flag of
// Linux 5.19.
func interruptibleFilter() (int, error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, err
	}
	listener, errno := setFilter([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_ACCEPT4},
		{Code: unix.BPF_RET | unix.BPF_K, K: seccompRetUserNotif},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
	if errno != 0 {
		return -1, errno
	}
	return int(listener), nil
}
