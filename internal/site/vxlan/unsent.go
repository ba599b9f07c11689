package vxlan

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"berth.dev/berth/internal/base/linux"
)

// betweenLooks is the time between two looks at a namespace's connections.
const betweenLooks = 10 * time.Millisecond

// AwaitSent waits until the other ends of closed TCP connections have acknowledged all
// data, in a network namespace that is about to lose its interface. The kernel
// retransmits lost data of a connection even after its process has ended, but not without
// an interface.
func AwaitSent(ctx context.Context, namespace string) error {
	tables, err := openTables(namespace)
	for _, table := range tables {
		defer table.Close()
	}
	if err != nil {
		return fmt.Errorf("look at the connections of network namespace %s: %w", namespace, err)
	}
	ticker := time.NewTicker(betweenLooks)
	defer ticker.Stop()
	for {
		unsent, err := anyUnsent(tables)
		if err != nil || !unsent {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// openTables opens the tables of a namespace's TCP connections.
func openTables(namespace string) (tables []*os.File, err error) {
	err = linux.InNetworkNamespace(namespace, func() error {
		for _, name := range []string{"tcp", "tcp6"} {
			table, err := os.Open("/proc/thread-self/net/" + name)
			if os.IsNotExist(err) && name == "tcp6" {
				continue // a kernel without IPv6
			}
			if err != nil {
				return err
			}
			tables = append(tables, table)
		}
		return nil
	})
	return tables, err
}

// anyUnsent reports whether a closed connection has data that the other end has not
// acknowledged. The FIN counts as data. The states are FIN_WAIT1, LAST_ACK and CLOSING
// of include/net/tcp_states.h, and a connection's state is the fourth column
// (Documentation/networking/proc_net_tcp.rst).
func anyUnsent(tables []*os.File) (bool, error) {
	for _, table := range tables {
		content, err := io.ReadAll(io.NewSectionReader(table, 0, 1<<62))
		if err != nil {
			return false, fmt.Errorf("read %s: %w", table.Name(), err)
		}
		for line := range bytes.Lines(content) {
			fields := bytes.Fields(line)
			if len(fields) < 4 {
				continue
			}
			switch string(fields[3]) {
			case "04", "09", "0B":
				return true, nil
			}
		}
	}
	return false, nil
}
