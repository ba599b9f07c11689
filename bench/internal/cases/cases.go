package cases

import (
	"fmt"
	"strconv"

	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/system"
)

// Case is one case. Task and Read keep no state between calls.
type Case struct {
	plan.Kind
	// Task returns the program for a case with these parameters. cpus and memoryMB are a
	// trial's cores and memory. An error means that these values cannot be measured.
	Task func(parameters map[string]string, cpus, memoryMB int) (system.Task, error)
	// Read returns the figures in the program's output, or an error if one is missing.
	Read func(parameters map[string]string, out system.Output) ([]record.Value, error)
}

// All returns the cases.
func All() []Case {
	return []Case{
		startup(), cpu(), memory(), storage(), bandwidth(), latency(), connections(),
		patchTuesday(), coldNode(), fourNodes(), lazyPull(),
		requirements(), scale(), mpiInit(), steps(), hpl(), program(),
	}
}

// Find returns the case with a name, and reports whether there is one.
func Find(name string) (Case, bool) {
	for _, c := range All() {
		if c.Name == name {
			return c, true
		}
	}
	return Case{}, false
}

// Kinds returns the kinds of the cases, for plans.
func Kinds() map[string]plan.Kind {
	all := map[string]plan.Kind{}
	for _, c := range All() {
		all[c.Name] = c.Kind
	}
	return all
}

// positive returns an error unless a value is a whole number above zero.
func positive(value string) error {
	if n, err := strconv.Atoi(value); err != nil || n < 1 {
		return fmt.Errorf("give a whole number from 1")
	}
	return nil
}

// number parses a parameter that a Check has accepted.
func number(parameters map[string]string, name string) float64 {
	n, err := strconv.ParseFloat(parameters[name], 64)
	if err != nil {
		return 0
	}
	return n
}

// The directions of improvement of a figure, for Better.
const (
	higher = "higher"
	lower  = "lower"
)
