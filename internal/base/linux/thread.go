package linux

import (
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
