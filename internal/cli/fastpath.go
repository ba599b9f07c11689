package cli

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/access/login"
	"berth.dev/berth/internal/base/metrics"
)

// pageLimit limits how long a node may take to return its metrics.
const pageLimit = 3 * time.Second

// pagesOf returns the metrics of a cluster's nodes; empty for nodes that do not
// answer.
func pagesOf(ctx context.Context, session *login.Session, nodes []string) []string {
	api, err := session.API()
	if err != nil {
		return nil
	}
	defer api.Close()
	ctx, cancel := context.WithTimeout(ctx, pageLimit)
	defer cancel()
	pages := make([]string, len(nodes))
	var reading sync.WaitGroup
	for i, node := range nodes {
		reading.Go(func() { pages[i], _ = api.Text(ctx, metrics.Path(node)) })
	}
	reading.Wait()
	return pages
}

// sumOf adds up a family of counters over all nodes, by label. It returns nil if no
// node has such a counter.
func sumOf(pages []string, family, label string) map[string]int {
	var sum map[string]int
	for _, page := range pages {
		for value, n := range metrics.ByLabel(page, family, label) {
			if sum == nil {
				sum = map[string]int{}
			}
			sum[value] += int(n)
		}
	}
	return sum
}

// notTCP is the Switch's counter of sockets that are not meant to be switched,
// such as sockets for name lookups.
const notTCP = "overlay: not TCP"

// describeFastPath reports how many connections the hosts have made, and why not
// more. The Switch's counters are named "overlay: " and the reason.
func describeFastPath(counted map[string]int) string {
	why, refused, left := map[string]int{}, 0, 0
	for outcome, n := range counted {
		if reason, ok := strings.CutPrefix(outcome, "overlay: "); ok && outcome != notTCP {
			why["("+reason+")"] += n
			left += n
		}
		if strings.HasPrefix(outcome, "refused: ") {
			refused += n
		}
	}
	outside := counted["connected to the outside"]
	text := fmt.Sprintf("%d connections made by the hosts", counted["connected"]+outside)
	if outside > 0 {
		text += fmt.Sprintf(" (%d to the outside)", outside)
	}
	text += fmt.Sprintf(", %d not", left)
	if left > 0 {
		text += ": " + counts(why, "")
	}
	if n := counted[notTCP]; n > 0 {
		text += fmt.Sprintf("; %d that are not TCP", n)
	}
	if refused > 0 {
		text += fmt.Sprintf("; %d calls refused", refused)
	}
	return text
}
