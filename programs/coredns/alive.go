package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

// Environment variables that define where the program reports that it is alive.
// CoreDNS itself reads the command line.
const (
	notifyVariable  = "BERTH_NOTIFY_FD"
	addressVariable = "BERTH_DNS_ADDRESS"
)

// period is the time between two heartbeats.
const period = time.Second

// heartbeat says once that the server is ready and then, every second, that it
// answers; one JSON object per line. It says nothing while it does not answer.
func heartbeat(getenv func(string) string) error {
	fd, err := strconv.Atoi(getenv(notifyVariable))
	if err != nil {
		return nil // started by hand
	}
	notify := os.NewFile(uintptr(fd), "notify")
	if notify == nil {
		return fmt.Errorf("use descriptor %d of %s: it is not open", fd, notifyVariable)
	}
	if _, err := notify.WriteString("{\"event\":\"ready\"}\n"); err != nil {
		return fmt.Errorf("report readiness: %w", err)
	}
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, getenv(addressVariable))
	}}
	go func() {
		for range time.Tick(period) {
			if answers(&resolver) {
				// Nobody to notify means that nobody is left to start us again.
				_, _ = notify.WriteString("{\"event\":\"alive\"}\n")
			}
		}
	}()
	return nil
}

// answers asks for a name of the cluster. Any answer proves that the server
// lives, also that there is no such name.
func answers(resolver *net.Resolver) bool {
	ctx, cancel := context.WithTimeout(context.Background(), period)
	defer cancel()
	_, err := resolver.LookupHost(ctx, "alive.cluster.local.")
	var failure *net.DNSError
	return err == nil || errors.As(err, &failure) && !failure.IsTimeout && ctx.Err() == nil
}
