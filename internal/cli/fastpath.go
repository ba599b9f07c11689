package cli

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/login"
	"berth.dev/berth/internal/metrics"
)

// fastPathLimit is how long a node may take to say how its connections are made.
const fastPathLimit = 3 * time.Second

// fastPathOf adds up what the nodes of a cluster say of connections that the
// hosts were to make; nil where none was looked at.
func fastPathOf(ctx context.Context, session *login.Session, nodes []string) map[string]int {
	api, err := session.API()
	if err != nil {
		return nil
	}
	defer api.Close()
	ctx, cancel := context.WithTimeout(ctx, fastPathLimit)
	defer cancel()
	pages := make([]string, len(nodes))
	var reading sync.WaitGroup
	for i, node := range nodes {
		reading.Go(func() { pages[i], _ = api.Text(ctx, metrics.Path(node)) })
	}
	reading.Wait()
	var sum map[string]int
	for _, page := range pages {
		for outcome, n := range metrics.ByLabel(page, metrics.FastPath, "outcome") {
			if sum == nil {
				sum = map[string]int{}
			}
			sum[outcome] += int(n)
		}
	}
	return sum
}

// describeFastPath says how many connections the hosts have made, and why not
// more: the Switch's own words are "overlay: " and the reason.
func describeFastPath(counted map[string]int) string {
	why, refused, left := map[string]int{}, 0, 0
	for outcome, n := range counted {
		if reason, ok := strings.CutPrefix(outcome, "overlay: "); ok {
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
	if refused > 0 {
		text += fmt.Sprintf("; %d calls refused", refused)
	}
	return text
}
