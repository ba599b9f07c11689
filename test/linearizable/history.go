package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// keys are the ConfigMaps of work.yaml. Each has one value, which begins as initial.
var keys = []string{"k0", "k1", "k2", "k3", "k4"}

const initial = "0"

// An operation is one request to the API and its answer. A client stores it twice: before
// the request, without Returned, and again when the answer is there. An operation without
// Returned may have had its effect at any time, or never.
type operation struct {
	Client   string
	Number   int
	Kind     string // read, write, or swap: a write that wants the old value to be Expected
	Key      string
	Value    string // what is written, or what was read
	Expected string `json:",omitempty"`
	Conflict bool   `json:",omitempty"` // a swap found another value
	Called   int64  // CLOCK_MONOTONIC in nanoseconds, which the hosts of a bed share
	Returned int64  `json:",omitempty"`
}

func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// readHistory reads the operations of all clients. The last line of a client that was
// killed may be incomplete.
func readHistory(folder string) ([]operation, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.history"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no client has stored anything in %s", folder)
	}
	var all []operation
	for _, file := range files {
		of, err := readClient(file)
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	return all, nil
}

func readClient(file string) ([]operation, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []operation
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var o operation
		if json.Unmarshal(lines.Bytes(), &o) != nil {
			break
		}
		if n := len(all); n > 0 && all[n-1].Number == o.Number {
			all[n-1] = o
		} else {
			all = append(all, o)
		}
	}
	return all, lines.Err()
}

// longestGap returns the longest time between two acknowledged writes of any client.
func longestGap(returns []int64) time.Duration {
	var longest int64
	for i := 1; i < len(returns); i++ {
		longest = max(longest, returns[i]-returns[i-1])
	}
	return time.Duration(longest)
}
