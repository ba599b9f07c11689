package slurm

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxHosts bounds what a host list may expand to. The largest machines have
// some ten thousand nodes; a list that says more is damaged.
const maxHosts = 1 << 16

// ExpandHosts returns the names of a Slurm host list, in its order:
// "n[1-3,7],gpu-[01-12]", and several brackets in one name: "r[1-2]n[0-3]".
// Numbers keep their leading zeros. An empty list has no names.
func ExpandHosts(list string) ([]string, error) {
	var hosts []string
	for _, word := range splitHosts(list) {
		if strings.TrimSpace(word) == "" {
			continue
		}
		names, err := expandWord(strings.TrimSpace(word), maxHosts-len(hosts))
		if err != nil {
			return nil, fmt.Errorf("expand host list %.80q: %w", list, err)
		}
		hosts = append(hosts, names...)
	}
	return hosts, nil
}

var errTooManyHosts = errors.New("more hosts than " + strconv.Itoa(maxHosts))

// splitHosts cuts at the commas outside of brackets.
func splitHosts(list string) []string {
	var words []string
	depth, start := 0, 0
	for i, r := range list {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth == 0 {
				words = append(words, list[start:i])
				start = i + 1
			}
		}
	}
	return append(words, list[start:])
}

// expandWord expands the brackets of one word, the last one varying fastest.
func expandWord(word string, limit int) ([]string, error) {
	names := []string{""}
	for word != "" {
		literal, rest, found := strings.Cut(word, "[")
		if strings.ContainsAny(literal, "] \t\n") {
			return nil, fmt.Errorf("stray bracket or space in %.80q", word)
		}
		var choices []string
		if found {
			inside, after, closed := strings.Cut(rest, "]")
			if !closed {
				return nil, fmt.Errorf("missing bracket in %.80q", word)
			}
			var err error
			if choices, err = expandRanges(inside, limit); err != nil {
				return nil, err
			}
			word = after
		} else {
			choices, word = []string{""}, ""
		}
		if len(names)*len(choices) > limit {
			return nil, errTooManyHosts
		}
		longer := make([]string, 0, len(names)*len(choices))
		for _, name := range names {
			for _, choice := range choices {
				longer = append(longer, name+literal+choice)
			}
		}
		names = longer
	}
	return names, nil
}

// expandRanges expands "1-3,7,010-012".
func expandRanges(ranges string, limit int) ([]string, error) {
	var numbers []string
	for item := range strings.SplitSeq(ranges, ",") {
		low, high, isRange := strings.Cut(item, "-")
		if !isRange {
			high = low
		}
		first, err := digits(low)
		if err != nil {
			return nil, err
		}
		last, err := digits(high)
		if err != nil {
			return nil, err
		}
		if last < first {
			return nil, fmt.Errorf("range %.40q runs backwards", item)
		}
		if last-first >= uint64(limit-len(numbers)) {
			return nil, errTooManyHosts
		}
		for n := first; n <= last; n++ {
			numbers = append(numbers, fmt.Sprintf("%0*d", len(low), n))
		}
	}
	return numbers, nil
}

// digits reads a number of a range. ParseUint would take a sign or an
// underscore in other bases.
func digits(s string) (uint64, error) {
	if s == "" || len(s) > 18 || strings.Trim(s, "0123456789") != "" {
		return 0, fmt.Errorf("%.40q is not a number", s)
	}
	return strconv.ParseUint(s, 10, 64)
}
