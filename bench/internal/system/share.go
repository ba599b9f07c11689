package system

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"berth.dev/berth/bench/internal/record"
)

// countsMark stands between what a task printed and its node's counters of
// connections.
const countsMark = "--- counters of the node ---"

// countedAfter is a command that prints those counters when it has ended.
func countedAfter(args []string) []string {
	script := fmt.Sprintf(`"$@"; code=$?; echo; echo '%s'; busybox wget -q -O - "http://$NODE:10247/metrics"; exit $code`, countsMark)
	return append([]string{"sh", "-c", script, "sh"}, args...)
}

// share takes the counters off a task's output. The value is which part of the
// connections of the client's node the hosts have made, of the fast path; there is
// none where the node has no fast path, or made no connection.
func share(text string) (string, []record.Value, error) {
	own, counters, found := strings.Cut(text, "\n"+countsMark+"\n")
	if !found {
		return text, nil, nil
	}
	var made, all float64
	for _, match := range regexp.MustCompile(`(?m)^berth_fastpath_total\{.*outcome="([^"]*)".*\} (\S+)$`).FindAllStringSubmatch(counters, -1) {
		n, err := strconv.ParseFloat(match[2], 64)
		if err != nil {
			return own, nil, fmt.Errorf("read the counters of connections: %w", err)
		}
		switch {
		case match[1] == "connected":
			made += n
			all += n
		case strings.HasPrefix(match[1], "overlay: ") && match[1] != "overlay: not TCP":
			all += n
		}
	}
	if all == 0 {
		return own, nil, nil
	}
	return own, []record.Value{{Name: "connections made by the hosts", Unit: "%", Better: "higher", Value: 100 * made / all}}, nil
}
