// Command pause waits for a signal to stop, and reaps the orphaned children of
// other processes, as upstream's pause does.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	dead := make(chan os.Signal, 1)
	signal.Notify(dead, syscall.SIGCHLD)
	for {
		select {
		case s := <-stop:
			fmt.Println("Shutting down, got signal:", s)
			return
		case <-dead:
			for {
				if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
					break
				}
			}
		}
	}
}
