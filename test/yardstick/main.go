// Command yardstick measures berth: the time a cluster takes to come up, to run a
// first pod and to go away again, and the cost of an idle cluster, on one host and,
// through Slurm, on several. It runs as root on a host of the bed and starts berth as
// an ordinary user. Each call measures one case once, and prints its figures for berth
// bench, whose case "program" calls it. The script run in this folder arranges that.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	var b bencher
	flag.StringVar(&b.berth, "berth", "bin/berth", "`path` of berth")
	flag.StringVar(&b.image, "image", "test/images/out/busybox.tar", "`archive` with busybox:1.37")
	flag.StringVar(&b.user, "user", "alice", "`user` to run berth as; empty is the one that calls")
	flag.DurationVar(&b.idle, "idle", 30*time.Second, "how long to watch an idle cluster")
	own := map[string]func() error{
		"schedule": schedule, "ticks": printTicks, "memory": printMemory, "reach": reach, "objects": objects,
		"elastic": elastic, "roles": roles,
	}
	// The program starts itself inside the cluster that it measures.
	if len(os.Args) == 2 {
		if part := own[strings.TrimPrefix(os.Args[1], "-")]; part != nil {
			if err := part(); err != nil {
				fatal(err)
			}
			return
		}
	}
	flag.Parse()
	does := cases[flag.Arg(0)]
	if does == nil {
		fatal(fmt.Errorf("give a case: one of %s", strings.Join(slices.Sorted(maps.Keys(cases)), ", ")))
	}
	figures, err := does(&b)
	if err != nil {
		fatal(fmt.Errorf("%s: %w", flag.Arg(0), err))
	}
	if err := printFigures(figures); err != nil {
		fatal(err)
	}
}

// figure is a figure in the form that berth bench reads.
type figure struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"`
	Better string  `json:"better"`
	Value  float64 `json:"value"`
}

// printFigures prints figures, whose names end with their units.
func printFigures(figures map[string]float64) error {
	for _, name := range slices.Sorted(maps.Keys(figures)) {
		if err := json.NewEncoder(os.Stdout).Encode(figureOf(name, figures[name])); err != nil {
			return err
		}
	}
	return nil
}

func figureOf(name string, value float64) figure {
	f := figure{Name: name, Better: "lower", Value: value}
	if i := strings.LastIndex(name, ", "); i >= 0 {
		f.Name, f.Unit = name[:i], name[i+2:]
	}
	return f
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "yardstick:", err)
	os.Exit(1)
}
