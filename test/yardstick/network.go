package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// network measures the overlay beside bare metal and other programs, with the
// benchmark of its package, which makes the hosts. Each value is named by the load
// and the quantity.
func (b *bencher) network() (map[string]float64, error) {
	dir, err := os.MkdirTemp("", "berth-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "record")
	command := exec.Command(b.overlay, "-test.run=^$", "-test.bench=BesideBare/", "-test.benchtime=1x", "-test.timeout=0")
	command.Env = append(os.Environ(), "BERTH_OVERLAY_RECORD="+path)
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("measure the network between nodes: %w", err)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read what was measured: %w; see with -test.v why nothing was", err)
	}
	defer file.Close()
	figures := map[string]float64{}
	for lines := json.NewDecoder(file); ; {
		var load struct {
			Name   string
			Values map[string][]float64
		}
		err := lines.Decode(&load)
		if errors.Is(err, io.EOF) {
			return figures, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read what was measured: %w", err)
		}
		for what, values := range load.Values {
			if len(values) == 1 {
				figures[load.Name+": "+withUnit(what)] = values[0]
			}
		}
	}
}

// withUnit converts the name of one of the benchmark's values to the name of a figure:
// the unit is at the end, and "x-" becomes a multiple of bare metal.
func withUnit(what string) string {
	if strings.HasPrefix(what, "x-") {
		return what + ", times bare"
	}
	for _, unit := range []string{"Gbit/s", "CPU-s/GB", "us"} {
		if before, is := strings.CutSuffix(what, "-"+unit); is {
			return before + ", " + unit
		}
	}
	return what
}
