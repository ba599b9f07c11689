package main

import (
	"compress/gzip"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A round is one start of the suite.
type round struct {
	Name       string      `xml:"name,attr"`
	Conditions []condition `xml:"properties>property"`
	Cases      []testcase  `xml:"testcase"`
}

type condition struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

// condition returns the values of that name.
func (r round) condition(name string) []string {
	var values []string
	for _, c := range r.Conditions {
		if c.Name == name {
			values = append(values, c.Value)
		}
	}
	return values
}

// started returns the start of the round in UTC. It sorts as text.
func (r round) started() string { return strings.Join(r.condition("date"), "") }

type testcase struct {
	Name    string   `xml:"name,attr"`
	Status  string   `xml:"status,attr"`
	Seconds float64  `xml:"time,attr"`
	Failure *failure `xml:"failure"`
	Error   *failure `xml:"error"`
	// Log is the suite's log. It omits specs that pass.
	Log string `xml:"system-err,omitempty"`
}

type failure struct {
	Type string `xml:"type,attr"`
	Text string `xml:",chardata"`
}

type suites struct {
	XMLName xml.Name `xml:"testsuites"`
	Rounds  []round  `xml:"testsuite"`
}

type state string

const (
	notRun state = "not run"
	passed state = "passed"
	failed state = "failed"
)

// state returns what the testcase proves. A testcase that the end of the suite
// cut short proves nothing.
func (c testcase) state() state {
	switch c.Status {
	case "passed":
		return passed
	case "failed", "panicked", "timedout":
		return failed
	}
	return notRun
}

// A history is the results of a spec, from the oldest on.
type history []testcase

// state returns the state of the last result.
func (h history) state() state {
	if len(h) == 0 {
		return notRun
	}
	return h[len(h)-1].state()
}

// histories returns the histories of all specs, by name.
func histories(rounds []round) map[string]history {
	all := make(map[string]history)
	for _, r := range rounds {
		for _, c := range r.Cases {
			all[c.Name] = append(all[c.Name], c)
		}
	}
	return all
}

// readRounds reads a folder of run, or a file of writeRounds, and returns the
// rounds in the order of their start, with only the specs that ran.
func readRounds(path string) ([]round, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	if !info.IsDir() {
		return readMerged(path)
	}
	files, err := filepath.Glob(filepath.Join(path, "*", "junit_*.xml"))
	if err != nil {
		return nil, fmt.Errorf("list results (folder %s): %w", path, err)
	}
	var rounds []round
	for _, file := range files {
		of, err := readRound(file)
		if err != nil {
			return nil, err
		}
		rounds = append(rounds, of)
	}
	slices.SortStableFunc(rounds, func(a, b round) int { return strings.Compare(a.started(), b.started()) })
	return rounds, nil
}

func readMerged(path string) ([]round, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	defer file.Close()
	text, err := gzip.NewReader(file)
	if err != nil {
		return nil, fmt.Errorf("uncompress results (file %s): %w", path, err)
	}
	var all suites
	if err := xml.NewDecoder(text).Decode(&all); err != nil {
		return nil, fmt.Errorf("parse results (file %s): %w", path, err)
	}
	return all.Rounds, nil
}

func readRound(path string) (round, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return round{}, fmt.Errorf("read results: %w", err)
	}
	var all suites
	if err := xml.Unmarshal(text, &all); err != nil {
		return round{}, fmt.Errorf("parse results (file %s): %w", path, err)
	}
	folder := filepath.Dir(path)
	of := round{Name: filepath.Base(folder)}
	if of.Conditions, err = readConditions(filepath.Join(folder, "conditions")); err != nil {
		return round{}, err
	}
	for _, suite := range all.Rounds {
		for _, c := range suite.Cases {
			spec, isSpec := strings.CutPrefix(c.Name, "[It] ")
			if isSpec && c.state() != notRun {
				c.Name = spec
				of.Cases = append(of.Cases, c)
			}
		}
	}
	return of, nil
}

func readConditions(path string) ([]condition, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read conditions: %w", err)
	}
	var all []condition
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		name, value, found := strings.Cut(line, ": ")
		if !found {
			return nil, fmt.Errorf("parse conditions (file %s): line %q is not \"name: value\"", path, line)
		}
		all = append(all, condition{Name: name, Value: value})
	}
	return all, nil
}

func writeRounds(out io.Writer, rounds []round) error {
	encoder := xml.NewEncoder(out)
	encoder.Indent("", " ")
	if err := encoder.Encode(suites{Rounds: rounds}); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}
