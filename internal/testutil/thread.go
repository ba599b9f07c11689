package testutil

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// OnNewThread runs f on a thread that ends with it. The first thread of the
// process cannot end, and what is read below /proc/self is its.
func OnNewThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		started := make(chan struct{})
		OnNewThread(func() { close(started); f() })
		<-started
		runtime.UnlockOSThread()
	}()
}
