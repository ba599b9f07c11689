package report

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/bench/internal/record"
)

// between is the longest pause in the records for a session to continue the
// previous one. After a longer pause, the load at its start comes from others,
// not from the bench.
const between = 10 * time.Minute

// Disturbed is a host whose load exceeded its processors when a run began. Every record
// has the load, with or without a baseline.
type Disturbed struct {
	Host, When   string
	Now, Minutes string // the load average of one minute, and of five
	Processors   int
}

// disturbed returns, for each beginning of a run, the host with the greatest load for its
// processors, if that load exceeds them.
func disturbed(lines []record.Line) (all []Disturbed) {
	// Hosts that share a machine's processors each show the load of the whole
	// machine.
	processors := 0
	for _, line := range lines {
		if t := line.Trial; t != nil && t.Step.Window != nil {
			processors = max(processors, t.Step.Window.Processors)
		}
	}
	var last time.Time
	for _, line := range lines {
		s := line.Session
		if s != nil && (last.IsZero() || line.Time.Sub(last) > between) {
			worst, most := Disturbed{}, 1.0
			for _, m := range s.Nodes {
				now, minutes, ok := loads(m.Load)
				of := max(m.CPUs, processors)
				if !ok || of == 0 {
					continue
				}
				if by := max(now, minutes) / float64(of); by > most {
					words := strings.Fields(m.Load)
					worst, most = Disturbed{m.Name, line.Time.UTC().Format(dateForm), words[0], words[1], of}, by
				}
			}
			if worst.Host != "" {
				all = append(all, worst)
			}
		}
		if line.CutOff == 0 {
			last = line.Time
		}
	}
	return all
}

// loads parses the first two numbers of /proc/loadavg.
func loads(text string) (now, minutes float64, ok bool) {
	words := strings.Fields(text)
	if len(words) < 2 {
		return 0, 0, false
	}
	now, err := strconv.ParseFloat(words[0], 64)
	if err != nil {
		return 0, 0, false
	}
	minutes, err = strconv.ParseFloat(words[1], 64)
	return now, minutes, err == nil
}

// String describes the disturbance in a sentence.
func (d Disturbed) String() string {
	return fmt.Sprintf("on %s, %s, the load was %s in the last minute and %s in the last five, on %d processors: it had other work up to then", d.Host, d.When, d.Now, d.Minutes, d.Processors)
}
