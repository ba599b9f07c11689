package script

import (
	"bytes"
	"fmt"
	"strings"

	"berth.dev/berth/internal/job/batch"
)

// directives returns the words on the #SBATCH lines of a script, as sbatch reads them
// (Slurm 22.05, src/sbatch/opt.c). Lines after the first command do not count. A line that
// begins a component of a heterogeneous job becomes the word ":".
func directives(script []byte) ([]string, error) {
	var all []string
	number := 0
	for line := range bytes.Lines(script) {
		number++
		text, ok := strings.CutPrefix(strings.TrimRight(string(line), "\r\n"), "#SBATCH")
		if !ok {
			if trimmed := bytes.TrimSpace(line); len(trimmed) > 0 && trimmed[0] != '#' {
				break
			}
			continue
		}
		words, err := batch.SplitDirective(text)
		if err != nil {
			return nil, fmt.Errorf("line %d of the script: %w", number, err)
		}
		if len(words) > 0 && (strings.EqualFold(words[0], "hetjob") || strings.EqualFold(words[0], "packjob")) {
			words = []string{":"}
		}
		all = append(all, words...)
	}
	return all, nil
}
