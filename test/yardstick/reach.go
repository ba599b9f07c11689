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
	// askPeriod is the time between two connections to an address. A packet to a missing
	// Service is dropped, and its connection waits a second before it sends the next
	// packet; so each attempt is a new connection.
	askPeriod = 50 * time.Millisecond
	// askLimit bounds one attempt to connect.
	askLimit = time.Second
)

// reach connects to all addresses of standard input, a line each, until every
// one has answered. It prints the time of its start.
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
