package step

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// listening is the line by which a step tells that its program listens.
const listening = "berth-bench-listening"

// tellListening waits until something on this machine listens on a TCP port, and
// says so.
func tellListening(port int) {
	for {
		for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			if listens(read(path), port) {
				fmt.Fprintln(os.Stderr, listening)
				return
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// listens looks for a port in a table of the kernel's: 0A is the state LISTEN.
func listens(table string, port int) bool {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) > 3 && fields[3] == "0A" && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
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
