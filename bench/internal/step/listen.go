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

// reportListening waits until a program on this machine listens on a TCP port, or has bound
// a UDP port. Then it prints the line listening.
func reportListening(port int) {
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

// States of sockets in /proc/net/tcp and /proc/net/udp.
const (
	listen      = "0A"
	unconnected = "07"
)

// has reports whether a table of /proc/net has a socket with a local port in a state.
func has(table string, port int, state string) bool {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) > 3 && fields[3] == state && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
			return true
		}
	}
	return false
}

// AwaitListening reads a step's output until the step reports that its program listens. ok
// is false if the output ends before. said is the output up to there.
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
