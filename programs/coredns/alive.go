package main

import (
	"context"
	"encoding/json"
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

// openNotify returns the descriptor for events, or nil if the program was started
// by hand.
func openNotify(getenv func(string) string) (*os.File, error) {
	fd, err := strconv.Atoi(getenv(notifyVariable))
	if err != nil {
		return nil, nil
	}
	notify := os.NewFile(uintptr(fd), "notify")
	if notify == nil {
		return nil, fmt.Errorf("use descriptor %d of %s: it is not open", fd, notifyVariable)
	}
	return notify, nil
}

// notice writes what the user should know to notify, and to standard error, which
// is the log.
func notice(notify *os.File, text string) {
	fmt.Fprintln(os.Stderr, text)
	if notify != nil {
		line, _ := json.Marshal(map[string]string{"event": "notice", "name": text}) // strings always encode
		_, _ = notify.Write(append(line, '\n'))                                     // see heartbeat
	}
}

// heartbeat says once that the server is ready and then, every second, that it
// answers; one JSON object per line. It says nothing while it does not answer.
func heartbeat(notify *os.File, getenv func(string) string) error {
	if notify == nil {
		return nil
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

// answers asks for a name of the cluster. Any answer proves that the
// server is alive, even the answer that there is no such name.
func answers(resolver *net.Resolver) bool {
	ctx, cancel := context.WithTimeout(context.Background(), period)
	defer cancel()
	_, err := resolver.LookupHost(ctx, "alive.cluster.local.")
	var failure *net.DNSError
	return err == nil || errors.As(err, &failure) && !failure.IsTimeout && ctx.Err() == nil
}
