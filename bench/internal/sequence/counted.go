package sequence

import (
	"context"
	"fmt"

	"berth.dev/berth/bench/internal/counters"
)

// pageProgram prints the metrics page of the node that it runs on. The page is up to
// a second old.
const pageProgram = `import os, time, urllib.request
time.sleep(1.1)
print(urllib.request.urlopen("http://%s:10247/metrics" % os.environ["NODE"], timeout=10).read().decode())
`

// counted calls does, and adds to its result the share of the workers' connections that the
// hosts made. Workers connect only to pods. So a connection that is not to a pod of another
// node stays on its node, and does not count.
func (s Spec) counted(ctx context.Context, does func() (Result, error)) (Result, error) {
	if !s.Counted {
		return does()
	}
	before, err := s.pages(ctx)
	if err != nil {
		return Result{}, err
	}
	r, err := does()
	if err != nil {
		return r, err
	}
	after, err := s.pages(ctx)
	if err != nil {
		return r, err
	}
	var all counters.Counts
	for n := range after {
		all.Add(after[n].Since(before[n]))
	}
	r.Values, r.Left = append(r.Values, all.Share(counters.Elsewhere)...), all.Left
	return r, nil
}

// pages returns the counters of each worker's node.
func (s Spec) pages(ctx context.Context) (all []counters.Counts, err error) {
	for n := range s.Nodes {
		page, err := s.kubectl(ctx, "", "exec", fmt.Sprintf("%s-%d", workers, n), "--", python, "-c", pageProgram)
		if err != nil {
			return nil, fmt.Errorf("read the counters of connections: %w", err)
		}
		c, err := counters.Read(page)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}
