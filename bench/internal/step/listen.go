package step

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// listening is the line that a step prints when its program listens.
const listening = "berth-bench-listening"

// tellListening waits until a program on this machine has the port, listening if
// it is TCP, and reports it.
func tellListening(port int) {
	for {
		for path, state := range map[string]string{"/proc/net/tcp": listen, "/proc/net/tcp6": listen, "/proc/net/udp": unconnected, "/proc/net/udp6": unconnected} {
			if has(read(path), port, state) {
				fmt.Fprintln(os.Stderr, listening)
				return
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// States of sockets in tables of the kernel's.
const (
	listen      = "0A"
	unconnected = "07"
)

// has looks for a port in a state in such a table.
func has(table string, port int, state string) bool {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) > 3 && fields[3] == state && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
			return true
		}
	}
	return false
}

// AwaitListening reads what a step says until it tells that its program listens.
// Otherwise it ends with the step, and returns what that said.
func AwaitListening(from io.Reader) (said string, ok bool) {
	var text strings.Builder
	for lines := bufio.NewScanner(from); lines.Scan(); {
		if lines.Text() == listening {
			return text.String(), true
		}
		if !strings.HasPrefix(lines.Text(), Mark) {
			fmt.Fprintln(&text, lines.Text())
		}
	}
	return text.String(), false
}
