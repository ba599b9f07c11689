package batch

import (
	"fmt"
	"strings"
)

// SplitDirective splits the options of a #SBATCH line at spaces, as sbatch does (Slurm 22.05,
// src/sbatch/opt.c). Quotes group characters, # begins a comment, and a backslash makes the next
// character literal, except a space outside quotes.
func SplitDirective(line string) ([]string, error) {
	var words []string
	for {
		line = strings.TrimLeft(line, spaces)
		if line == "" {
			return words, nil
		}
		if line[0] == ':' {
			return nil, fmt.Errorf("unexpected ':' in [%s]", line)
		}
		word, rest, err := firstWord(line)
		if err != nil || word == "" {
			return words, err
		}
		words, line = append(words, word), rest
	}
}

// spaces holds the characters of isspace(3).
const spaces = " \t\v\f\r\n"

// firstWord returns the first word of a line, without its quotes and backslashes, and the rest
// of the line. The word is empty before a comment.
func firstWord(line string) (word, rest string, err error) {
	var b strings.Builder
	quote, escaped := byte(0), false
	i := 0
	for ; i < len(line) && (quote != 0 || !strings.Contains(spaces, line[i:i+1])); i++ {
		switch c := line[i]; {
		case escaped:
			escaped = false
			b.WriteByte(c)
		case c == '\\':
			escaped = true
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case quote == 0 && c == '#':
			return b.String(), "", nil
		default:
			b.WriteByte(c)
		}
	}
	if quote != 0 {
		return "", "", fmt.Errorf("unmatched %c in [%s]", quote, line)
	}
	return b.String(), line[i:], nil
}
