package linux

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Stat holds fields of /proc/PID/stat.
type Stat struct {
	PID, Parent int
	// State is a letter, such as ProcessZombie.
	State   byte
	Threads int
	// Start is in clock ticks after boot. PID and Start identify a process for good.
	Start uint64
	// User and System are processor times, without the times ChildUser and ChildSystem
	// of the children that the process has waited for.
	User, System, ChildUser, ChildSystem time.Duration
	// MinorFaults and MajorFaults include the faults of these children.
	MinorFaults, MajorFaults uint64
	// Resident is an upper bound of the process's memory in bytes: it includes mapped
	// files and counts shared pages in full.
	Resident uint64
}

// CPU returns the processor time, with the time of the children that the process has
// waited for. A zombie keeps it until it is waited for.
func (s Stat) CPU() time.Duration { return s.User + s.System + s.ChildUser + s.ChildSystem }

// Ended reports whether the process only waits to be reaped.
func (s Stat) Ended() bool { return s.State == ProcessZombie || s.State == 'X' }

// clockTick is USER_HZ, the unit of times in /proc: 100 per second on every
// architecture that Linux and Go share.
const clockTick = time.Second / 100

// States of a process, the letters of /proc/PID/stat.
const (
	ProcessStopped = 'T' // by a signal
	ProcessZombie  = 'Z' // ended, not yet waited for
)

// ReadStat reads the state of a process from the proc file system mounted at proc.
func ReadStat(proc string, pid int) (Stat, error) {
	text, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return Stat{}, fmt.Errorf("read state of process %d: %w", pid, err)
	}
	return ParseStat(text)
}

// ParseStat parses the content of a stat file. The name, in parentheses, may itself
// contain parentheses and blanks.
func ParseStat(text []byte) (Stat, error) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return Stat{}, fmt.Errorf("parse state %q: no name", text)
	}
	pid, failed := strconv.Atoi(string(bytes.TrimSpace(text[:open])))
	fields := bytes.Fields(text[end+1:])
	if len(fields) < 22 {
		return Stat{}, fmt.Errorf("parse state of process %d: %d fields", pid, len(fields))
	}
	number := func(i int) uint64 { // i as in proc_pid_stat(5), which counts from 1
		v, err := strconv.ParseUint(string(fields[i-3]), 10, 64)
		failed = errors.Join(failed, err)
		return v
	}
	ticks := func(i int) time.Duration { return time.Duration(number(i)) * clockTick }
	s := Stat{
		PID: pid, Parent: int(number(4)), State: fields[0][0], Threads: int(number(20)), Start: number(22),
		User: ticks(14), System: ticks(15), ChildUser: ticks(16), ChildSystem: ticks(17),
		MinorFaults: number(10) + number(11), MajorFaults: number(12) + number(13),
		Resident: number(24) * uint64(os.Getpagesize()),
	}
	if failed != nil {
		return Stat{}, fmt.Errorf("parse state of process %d: %w", pid, failed)
	}
	return s, nil
}
