package main

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cost holds the resources that processes have used until a time.
type cost struct {
	at time.Time
	// cpu is in seconds, pss in bytes, by name of the process.
	cpu, pss map[string]float64
}

// Names of processes that are not counted as the head's.
const (
	simulatedNodes = "simulated nodes"
	munged         = "munged"
)

// ticksPerSecond is the unit of /proc/PID/stat; Linux has one value on all architectures.
const ticksPerSecond = 100

// costs returns the cost of this process and of all processes of berth and munge on this host.
func costs() cost {
	c := cost{at: time.Now(), cpu: map[string]float64{}, pss: map[string]float64{}}
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range commands {
		content, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		name := nameOf(strings.Split(strings.TrimRight(string(content), "\x00"), "\x00"))
		if path == "/proc/"+strconv.Itoa(os.Getpid())+"/cmdline" {
			name = simulatedNodes
		}
		if name == "" {
			continue
		}
		folder := filepath.Dir(path)
		stat, err := os.ReadFile(filepath.Join(folder, "stat"))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		var ticks float64
		for _, field := range fields[11:15] { // user and system time, its own and its children's
			n, _ := strconv.ParseFloat(field, 64)
			ticks += n
		}
		c.cpu[name] += ticks / ticksPerSecond
		c.pss[name] += pssOf(folder)
	}
	return c
}

// nameOf returns the name of a process that is measured, or "".
func nameOf(command []string) string {
	program := filepath.Base(command[0])
	switch {
	case program == munged:
		return munged
	case !strings.HasPrefix(program, "berth") || len(command) < 2:
		return ""
	}
	return program + " " + command[1]
}

func pssOf(folder string) float64 {
	content, err := os.ReadFile(filepath.Join(folder, "smaps_rollup"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "Pss:" {
			kilobytes, _ := strconv.ParseFloat(fields[1], 64)
			return kilobytes * 1024
		}
	}
	return 0
}

// addCosts adds the difference between two times.
func (r *record) addCosts(phase string, before, after cost) {
	took := after.at.Sub(before.at).Seconds()
	r.Values[phase+", s"] = took
	head := 0.0
	for name, cpu := range after.cpu {
		used := cpu - before.cpu[name]
		r.Values[phase+": CPU of "+name+", s"] = used
		r.Values[phase+": PSS of "+name+", MB"] = after.pss[name] / 1e6
		if name != simulatedNodes && name != munged {
			head += used
		}
	}
	r.Values[phase+": CPU of the head, s"] = head
}

func median(all []float64) float64 {
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

func last(all []float64) float64 { return slices.Max(all) }

func loadAverage() string {
	content, _ := os.ReadFile("/proc/loadavg")
	return strings.TrimSpace(string(content))
}

// raiseFiles lets this process have a socket for each port of each node.
func raiseFiles() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}
