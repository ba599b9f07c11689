package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

const heading = `# The Kubernetes conformance suite: results

<!-- Written by test/conformance/record; see test/conformance/README.md. -->

The [Conformance] specs of the Kubernetes suite, unchanged and none left out, on a cluster that
berth started over the nodes of a Slurm job (test/bed), as a user without privileges. **This is a
result of the suite, not a certification**: there is no registry in reach, so the images that the
specs start are stand-ins, built from the same Go sources where there are any and otherwise from
Debian packages (test/conformance/images). Rounds that overlap in time ran on
separate clusters, on one machine.

Every result, with what the suite logged about failures, is in
[conformance/junit.xml.gz](conformance/junit.xml.gz).

`

// writePage writes the page, and returns an error that names the failures
// without a cause and the causes without a failure: neither may be published.
func writePage(out io.Writer, specs []string, rounds []round, causes map[string]string) error {
	all := histories(rounds)
	fmt.Fprint(out, heading)
	writeCounts(out, specs, all)
	writeRoundTable(out, rounds)
	unused := maps.Clone(causes)
	var problems []error
	explain := func(title, text string, chosen func(history) bool) {
		var some []string
		for _, spec := range specs {
			if chosen(all[spec]) {
				some = append(some, spec)
			}
		}
		if len(some) == 0 {
			return
		}
		fmt.Fprintf(out, "## %s\n\n%s", title, text)
		for _, spec := range some {
			cause, found := causes[spec]
			if !found {
				problems = append(problems, fmt.Errorf("find the cause of a failure (spec %s)", spec))
				cause = "The cause has not been found yet."
			}
			delete(unused, spec)
			fmt.Fprintf(out, "### %s\n\n%s\n\n%s\n\n", escape(spec), outcomes(rounds, spec), cause)
		}
	}
	explain("Failed", "", func(h history) bool { return h.state() == failed })
	explain("Failed at least once, passed the last time", "", func(h history) bool {
		return h.state() == passed && slices.ContainsFunc(h, func(c testcase) bool { return c.state() == failed })
	})
	for spec := range unused {
		problems = append(problems, fmt.Errorf("place a cause: no such spec failed (heading %q)", spec))
	}
	writeSpecs(out, specs, all)
	return errors.Join(problems...)
}

func writeCounts(out io.Writer, specs []string, all map[string]history) {
	counts := make(map[string]map[state]int)
	total := make(map[state]int)
	for _, spec := range specs {
		s := all[spec].state()
		if counts[area(spec)] == nil {
			counts[area(spec)] = make(map[state]int)
		}
		counts[area(spec)][s]++
		total[s]++
	}
	fmt.Fprintf(out, "**%d of %d passed**, %d failed, %d were not run.\n\n", total[passed], len(specs), total[failed], total[notRun])
	fmt.Fprint(out, "| area | specs | passed | failed | not run |\n| --- | ---: | ---: | ---: | ---: |\n")
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		c := counts[name]
		fmt.Fprintf(out, "| %s | %d | %d | %d | %d |\n", name, c[passed]+c[failed]+c[notRun], c[passed], c[failed], c[notRun])
	}
	fmt.Fprintln(out)
}

// writeRoundTable writes where and when everything ran. Conditions that all
// rounds share are written once, and long ones once for all rounds that share
// them.
func writeRoundTable(out io.Writer, rounds []round) {
	const long = 40
	fmt.Fprint(out, "## Conditions\n\n")
	own := make([][]string, len(rounds))
	for _, name := range conditionNames(rounds) {
		where := make(map[string][]string)
		var values []string
		for i, r := range rounds {
			value := strings.Join(r.condition(name), "; ")
			if len(where[value]) == 0 {
				values = append(values, value)
			}
			where[value] = append(where[value], r.Name)
			if value != "" && len(value) <= long && name != "date" {
				own[i] = append(own[i], name+" "+value)
			}
		}
		for _, value := range values {
			switch {
			case len(where[value]) == len(rounds):
				fmt.Fprintf(out, "- %s: %s\n", name, escape(value))
				for i := range own {
					own[i] = slices.DeleteFunc(own[i], func(said string) bool { return said == name+" "+value })
				}
			case len(value) > long:
				fmt.Fprintf(out, "- %s of %s: %s\n", name, strings.Join(where[value], ", "), escape(value))
			}
		}
	}
	fmt.Fprint(out, "\n| round | started (UTC) | passed | failed | conditions of its own |\n| --- | --- | ---: | ---: | --- |\n")
	for i, r := range rounds {
		count := make(map[state]int)
		for _, c := range r.Cases {
			count[c.state()]++
		}
		fmt.Fprintf(out, "| %s | %s | %d | %d | %s |\n", r.Name, r.started(), count[passed], count[failed], escape(strings.Join(own[i], "; ")))
	}
	fmt.Fprintln(out)
}

// conditionNames returns each name once, in the order of the first round that
// has it.
func conditionNames(rounds []round) []string {
	var names []string
	for _, r := range rounds {
		for _, c := range r.Conditions {
			if !slices.Contains(names, c.Name) {
				names = append(names, c.Name)
			}
		}
	}
	return names
}

// outcomes lists how the spec ended in each round, with the first line of its
// failure.
func outcomes(rounds []round, spec string) string {
	var lines []string
	for _, r := range rounds {
		for _, c := range r.Cases {
			if c.Name != spec {
				continue
			}
			line := fmt.Sprintf("- %s: %s after %.0f s", r.Name, c.state(), c.Seconds)
			if said := c.firstLine(); said != "" {
				line += ": `" + strings.ReplaceAll(said, "`", "'") + "`"
			}
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

func (c testcase) firstLine() string {
	f := c.Failure
	if f == nil {
		f = c.Error
	}
	if f == nil {
		return ""
	}
	first, _, _ := strings.Cut(strings.TrimLeft(strings.TrimPrefix(f.Text, "[FAILED] "), " \n["), "\n")
	const longest = 300
	if len(first) > longest {
		first = strings.ToValidUTF8(first[:longest], "") + "..."
	}
	return first
}

func writeSpecs(out io.Writer, specs []string, all map[string]history) {
	fmt.Fprint(out, "## All specs\n\n| result | seconds | spec |\n| --- | ---: | --- |\n")
	for _, spec := range specs {
		h := all[spec]
		seconds := ""
		if len(h) > 0 {
			seconds = fmt.Sprintf("%.0f", h[len(h)-1].Seconds)
		}
		fmt.Fprintf(out, "| %s | %s | %s |\n", h.state(), seconds, escape(spec))
	}
}

// area returns the special interest group that a spec's name starts with.
func area(spec string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(spec, "[sig-"), "]")
	return name
}

// escape keeps Markdown from reading anything into the text.
func escape(text string) string {
	return strings.NewReplacer("|", "\\|", "*", "\\*", "<", "&lt;", "_", "\\_", "[", "\\[", "]", "\\]").Replace(text)
}
