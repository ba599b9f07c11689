package report

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"berth.dev/berth/bench/internal/record"
)

// readPlan sets the systems with the fast path, and the memory of a job, from the plan of a
// session.
func (r *Report) readPlan(s *record.Session) error {
	var plan struct {
		MemoryMB float64 `yaml:"memory-mb"`
		Systems  []struct {
			Name, Driver string
			Options      struct{ Network string }
		}
	}
	if err := yaml.Unmarshal([]byte(s.Plan), &plan); err != nil {
		return err
	}
	r.memory, r.fast = plan.MemoryMB*(1<<20), map[string]bool{}
	for _, system := range plan.Systems {
		if cmp.Or(system.Driver, system.Name) == "berth" && hasFastPath(s, system.Options.Network) {
			r.fast[s.System(system.Name)] = true
		}
	}
	return nil
}

// hasFastPath reports whether this value of the option network gives pods the fast path.
func hasFastPath(s *record.Session, network string) bool {
	if s.Renamed() {
		return network == "fast"
	}
	return network == "" || network == "auto"
}

// smallFile returns a warning if the file of a storage case is so small that
// caches may hold it.
func (r *Report) smallFile(t *record.Trial) string {
	const times = 2 // as the KSI paper has it
	if t.Kind != "storage" || r.memory == 0 {
		return ""
	}
	size := sizeOf(t.Parameters["size"])
	if size == 0 || size >= times*r.memory {
		return ""
	}
	return fmt.Sprintf("The file is %.2g times the memory of a job, and not %d times or more: caches below the file system may have a part in these figures.", size/r.memory, times)
}

// sizeOf returns a plan's size, such as 8G, in bytes; 0 if it is not a size.
func sizeOf(text string) float64 {
	number, unit := text[:max(0, len(text)-1)], text[max(0, len(text)-1):]
	n, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0
	}
	return n * map[string]float64{"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[strings.ToLower(unit)]
}
