// Command yardstick measures berth: how long a cluster takes to come up, to run a
// first pod and to go away again, and what it costs while it is idle; on one host
// and, through Slurm, on several; and the network between nodes. It runs as root
// on a host of the bed, starts berth as an ordinary user, and writes one record
// per call; the script run beside it arranges that.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

// record is one call's results. Times are in seconds, memory in bytes.
type record struct {
	Time    time.Time           `json:"time"`
	Version string              `json:"version"`
	Host    hostFacts           `json:"host"`
	Runs    int                 `json:"runs"`
	Cases   map[string]*samples `json:"cases"`
}

func main() {
	var b bencher
	runs := flag.Int("runs", 10, "runs of each case")
	flag.StringVar(&b.berth, "berth", "bin/berth", "`path` of berth")
	flag.StringVar(&b.image, "image", "test/images/out/busybox.tar", "`archive` with busybox:1.37")
	flag.StringVar(&b.user, "user", "alice", "`user` to run berth as; empty is the one that calls")
	out := flag.String("out", "", "`file` for the record; empty prints only")
	only := flag.String("only", "", "the one `case` to run")
	flag.IntVar(&b.nodes, "nodes", 0, "measure through Slurm, with this `number` of nodes at most")
	flag.StringVar(&b.overlay, "overlay", "", "measure the network between nodes alone, with the test `program` of internal/overlay")
	own := map[string]func() error{
		"schedule": schedule, "ticks": printTicks, "memory": printMemory, "reach": reach,
	}
	idle := flag.Duration("idle", 30*time.Second, "how long to watch an idle cluster")
	// The program starts itself inside of what it measures.
	if len(os.Args) == 2 {
		if part := own[strings.TrimPrefix(os.Args[1], "-")]; part != nil {
			if err := part(); err != nil {
				fatal(err)
			}
			return
		}
	}
	flag.Parse()
	b.idle = *idle

	r := record{Time: time.Now().UTC().Truncate(time.Second), Host: inspect(), Runs: *runs, Cases: map[string]*samples{}}
	version, err := b.version()
	if err != nil {
		fatal(err)
	}
	r.Version = version
	chosen := cases
	if b.nodes > 0 {
		chosen = nodeCases
	}
	if b.overlay != "" {
		if r.Cases, err = b.network(*runs, *only); err != nil {
			fatal(err)
		}
		chosen = nil
	}
	for _, c := range chosen {
		if *only != "" && *only != c.name {
			continue
		}
		count := *runs
		if c.once {
			count = 1
		}
		for i := range count {
			fmt.Fprintf(os.Stderr, "%s %d/%d\n", c.name, i+1, count)
			results, err := c.run(&b)
			if err != nil {
				fatal(fmt.Errorf("%s: %w", c.name, err))
			}
			for name, value := range results {
				if r.Cases[name] == nil {
					r.Cases[name] = &samples{}
				}
				r.Cases[name].Values = append(r.Cases[name].Values, value)
			}
		}
	}
	for _, s := range r.Cases {
		s.summarise()
	}
	report(os.Stdout, r)
	if *out == "" {
		return
	}
	encoded, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(*out, append(encoded, '\n'), 0o644)
	}
	if err != nil {
		fatal(err)
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}
