package resourceview

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/cpuset"
)

// fields reads lines of "Name:  value kB" into bytes.
func fields(text string) map[string]uint64 {
	values := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, ":")
		number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		if v, err := strconv.ParseUint(number, 10, 54); err == nil {
			values[name] = v << 10
		}
	}
	return values
}

// free returns the memory that a container can still take: up to its limit, and
// no more than the machine has.
func free(machine map[string]uint64, l Limits, u Usage) uint64 {
	left := l.Memory - min(l.Memory, u.charged())
	if available, ok := machine["MemAvailable"]; ok {
		left = min(left, available)
	}
	return left
}

// meminfo makes /proc/meminfo. Only shared memory counts as cache. Other pages of files are
// not charged to the container, because the kernel can reclaim them.
func meminfo(machine string, l Limits, u Usage) string {
	host := fields(machine)
	left := free(host, l, u)
	var out strings.Builder
	for _, line := range []struct {
		name  string
		bytes uint64
	}{
		{"MemTotal", l.Memory}, {"MemFree", left}, {"MemAvailable", left}, {"Buffers", 0}, {"Cached", u.Shared}, {"SwapCached", 0},
		{"Active", u.Anonymous}, {"Inactive", u.Shared}, {"Active(anon)", u.Anonymous}, {"Inactive(anon)", u.Shared},
		{"Active(file)", 0}, {"Inactive(file)", 0}, {"Unevictable", 0}, {"Mlocked", 0}, {"SwapTotal", 0}, {"SwapFree", 0},
		{"Dirty", 0}, {"Writeback", 0}, {"AnonPages", u.Anonymous}, {"Mapped", u.Mapped}, {"Shmem", u.Shared},
		{"KReclaimable", 0}, {"Slab", 0}, {"SReclaimable", 0}, {"SUnreclaim", 0}, {"PageTables", u.PageTables},
	} {
		fmt.Fprintf(&out, "%-16s%8d kB\n", line.name+":", line.bytes>>10)
	}
	for line := range strings.Lines(machine) {
		if strings.HasPrefix(line, "Huge") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// cpuinfo makes /proc/cpuinfo. It omits the blocks of CPUs that the container does not have.
// It keeps blocks that belong to no CPU.
func cpuinfo(machine string, cpus cpuset.CPUSet) string {
	var out strings.Builder
	for block := range strings.SplitAfterSeq(machine, "\n\n") {
		if cpu, ok := processor(block); !ok || cpus.Contains(cpu) {
			out.WriteString(block)
		}
	}
	return out.String()
}

// processor returns the CPU of a block, which a line "processor : 3" names.
func processor(block string) (int, bool) {
	first, _, _ := strings.Cut(block, "\n")
	name, value, _ := strings.Cut(first, ":")
	if strings.TrimSpace(name) != "processor" {
		return 0, false
	}
	cpu, err := strconv.Atoi(strings.TrimSpace(value))
	return cpu, err == nil
}

// stat makes /proc/stat. It omits other CPUs, and makes the first line the sum of the
// container's CPUs. Their times include the use by processes outside the container.
func stat(machine string, cpus cpuset.CPUSet) string {
	var sum []uint64
	var lines, rest strings.Builder
	for line := range strings.Lines(machine) {
		words := strings.Fields(line)
		if len(words) == 0 || !strings.HasPrefix(words[0], "cpu") {
			rest.WriteString(line)
			continue
		}
		cpu, err := strconv.Atoi(strings.TrimPrefix(words[0], "cpu"))
		if err != nil || !cpus.Contains(cpu) {
			continue
		}
		lines.WriteString(line)
		for i, word := range words[1:] {
			if i == len(sum) {
				sum = append(sum, 0)
			}
			ticks, _ := strconv.ParseUint(word, 10, 64)
			sum[i] += ticks
		}
	}
	return "cpu  " + join(sum) + "\n" + lines.String() + rest.String()
}

func join(numbers []uint64) string {
	words := make([]string, len(numbers))
	for i, n := range numbers {
		words[i] = strconv.FormatUint(n, 10)
	}
	return strings.Join(words, " ")
}

// uptime makes /proc/uptime. The first number remains the machine's uptime, because start
// times of processes count from the machine's start. The second number is the time that the
// container's CPUs were idle.
func uptime(machine, stats string, cpus cpuset.CPUSet) string {
	since, _, _ := strings.Cut(machine, " ")
	words := strings.Fields(stat(stats, cpus))
	const idleColumn = 4
	if since == "" || len(words) <= idleColumn {
		return machine
	}
	ticks, _ := strconv.ParseUint(words[idleColumn], 10, 64)
	const perSecond = 100 // USER_HZ
	return fmt.Sprintf("%s %.2f\n", since, float64(ticks)/perSecond)
}

// text makes /proc/loadavg. The last field, the newest process ID, is the machine's.
func (l *load) text(u Usage, now time.Time, machine string) string {
	v := l.advance(u.User+u.System, now)
	last := "0"
	if words := strings.Fields(machine); len(words) > 4 {
		last = words[4]
	}
	return fmt.Sprintf("%.2f %.2f %.2f %d/%d %s\n", v[0], v[1], v[2], min(1, u.Threads), u.Threads, last)
}
