package metrics

import (
	"bufio"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
)

// Merge writes the pages of several nodes as one page. Each family stands once,
// as the format requires.
func Merge(w io.Writer, pages ...string) error {
	type family struct{ help, kind, lines string }
	families := map[string]*family{}
	var order []string
	get := func(name string) *family {
		if families[name] == nil {
			families[name] = &family{}
			order = append(order, name)
		}
		return families[name]
	}
	for _, page := range pages {
		for line := range strings.Lines(page) {
			line = strings.TrimSuffix(line, "\n") + "\n"
			switch words := strings.Fields(line); {
			case len(words) == 0:
			case len(words) > 2 && words[0] == "#" && words[1] == "HELP":
				get(words[2]).help = line
			case len(words) > 2 && words[0] == "#" && words[1] == "TYPE":
				get(words[2]).kind = line
			case words[0] != "#":
				name, _, _ := strings.Cut(words[0], "{")
				get(name).lines += line
			}
		}
	}
	out := bufio.NewWriter(w)
	for _, name := range order {
		if f := families[name]; f.lines != "" {
			fmt.Fprint(out, f.help, f.kind, f.lines)
		}
	}
	return out.Flush()
}

// Label adds a label to every sample of a page, which a program wrote that knows
// of one node only.
func Label(page, name, value string) string {
	label := name + "=" + quote(value)
	var text strings.Builder
	for line := range strings.Lines(page) {
		end := strings.IndexAny(line, "{ ")
		switch {
		case strings.HasPrefix(line, "#") || end < 0:
		case line[end] == '{':
			line = line[:end+1] + label + "," + line[end+1:]
		default:
			line = line[:end] + "{" + label + "}" + line[end:]
		}
		text.WriteString(line)
	}
	return text.String()
}

// Only returns the families of a page whose names begin with one of the prefixes.
func Only(page string, prefixes ...string) string {
	var text strings.Builder
	for line := range strings.Lines(page) {
		name := line
		if words := strings.Fields(line); len(words) > 2 && words[0] == "#" {
			name = words[2]
		}
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			text.WriteString(line)
		}
	}
	return text.String()
}

// Sums adds up the samples of each family of a page.
func Sums(page string) map[string]float64 {
	sums := map[string]float64{}
	for name, sample := range samples(page) {
		sums[name] += sample.value
	}
	return sums
}

// ByLabel adds up the samples of one family by the value of one of their labels.
func ByLabel(page, family, label string) map[string]float64 {
	sums := map[string]float64{}
	for name, sample := range samples(page) {
		if name != family {
			continue
		}
		if _, rest, found := strings.Cut(sample.labels, label+`="`); found {
			value, _, _ := strings.Cut(rest, `"`)
			sums[value] += sample.value
		}
	}
	return sums
}

type sample struct {
	labels string
	value  float64
}

// samples returns the lines of a page that have a value, by the names of their
// families.
func samples(page string) iter.Seq2[string, sample] {
	return func(yield func(string, sample) bool) {
		for line := range strings.Lines(page) {
			line = strings.TrimSpace(line)
			name := line[:max(0, strings.IndexAny(line, "{ "))]
			if strings.HasPrefix(line, "#") || name == "" {
				continue
			}
			rest := line[len(name):]
			end := strings.LastIndexByte(rest, '}') + 1
			words := strings.Fields(rest[end:])
			if len(words) == 0 {
				continue
			}
			if value, err := strconv.ParseFloat(words[0], 64); err == nil && !yield(name, sample{rest[:end], value}) {
				return
			}
		}
	}
}
