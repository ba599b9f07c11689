package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// askPeriod is how often each address is asked for. A packet to a Service
	// that is not there is dropped, and its connection waits a second until it
	// sends the next one; so each time it is a new connection.
	askPeriod = 50 * time.Millisecond
	// askLimit is how long one connection is waited for.
	askLimit = time.Second
)

// reach connects to all addresses of standard input, a line each, until every
// one has answered. It says when it begins.
func reach() error {
	var asking sync.WaitGroup
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		address := lines.Text()
		asking.Go(func() {
			answered := make(chan struct{})
			var once sync.Once
			for ask := time.NewTicker(askPeriod); ; {
				go func() {
					if conn, err := net.DialTimeout("tcp", address, askLimit); err == nil {
						conn.Close()
						once.Do(func() { close(answered) })
					}
				}()
				select {
				case <-answered:
					ask.Stop()
					return
				case <-ask.C:
				}
			}
		})
	}
	fmt.Println("asking")
	asking.Wait()
	return nil
}
