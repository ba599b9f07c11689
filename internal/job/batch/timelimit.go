package batch

import (
	"strconv"
	"strings"
	"time"
)

// TimeLimit reads a time limit as sbatch does: minutes, minutes:seconds, hours:minutes:seconds,
// days-hours, days-hours:minutes or days-hours:minutes:seconds. It returns false for other texts,
// and for no limit.
func TimeLimit(text string) (time.Duration, bool) {
	units := []time.Duration{time.Minute, time.Second}
	days, rest, long := strings.Cut(text, "-")
	if !long {
		days, rest = "0", text
	}
	parts := strings.Split(rest, ":")
	if long || len(parts) == 3 {
		units = []time.Duration{time.Hour, time.Minute, time.Second}
	}
	if len(parts) > len(units) {
		return 0, false
	}
	// 1<<16 days fit a Duration.
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil {
		return 0, false
	}
	limit := time.Duration(n) * 24 * time.Hour
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil || time.Duration(n) > (1<<16)*24*time.Hour/units[i] {
			return 0, false
		}
		limit += time.Duration(n) * units[i]
	}
	return limit, limit > 0
}
