package linux

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OnNewThread runs f on a thread that ends with it, and waits for it: for what
// cannot be undone, such as entering a namespace.
func OnNewThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		// The first thread of a process cannot end before it. While it is
		// taken, another goroutine gets another thread.
		OnNewThread(f)
		runtime.UnlockOSThread()
	}()
	<-done
}

// InNetworkNamespace runs f in the network namespace that a file names, on a new thread.
func InNetworkNamespace(path string, f func() error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	OnNewThread(func() {
		if err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter the network namespace %s: %w", path, err)
			return
		}
		err = f()
	})
	return err
}
