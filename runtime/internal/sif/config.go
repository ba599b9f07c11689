package sif

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// start is the command of a container without a command: like 'apptainer run',
// it reads the image's environment and continues with its runscript.
const start = `for script in /.singularity.d/env/*.sh; do [ ! -f "$script" ] || . "$script"; done
if [ -x /.singularity.d/runscript ]; then exec /.singularity.d/runscript "$@"; fi
exec /bin/sh "$@"`

// configuration returns the image configuration from the files in the image's
// folder.
func configuration(architecture string, texts map[string]string) ocispec.Image {
	var image ocispec.Image
	image.OS, image.Architecture = "linux", architecture
	image.Config.Entrypoint = []string{"/bin/sh", "-c", start, "runscript"}
	image.RootFS.Type = "layers"
	if json.Unmarshal([]byte(texts[labelsFile]), &image.Config.Labels) != nil {
		image.Config.Labels = nil // labels are only for people, and often missing
	}
	values := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	// Read the scripts in the order of their names, as the image's own programs do.
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if strings.HasPrefix(name, environment) && strings.HasSuffix(name, ".sh") {
			readScript(texts[name], values)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		image.Config.Env = append(image.Config.Env, name+"="+values[name])
	}
	return image
}

// readScript collects the variables of one of the image's scripts, for
// containers with their own command, which read no script. It takes only lines
// outside branches, loops and functions. Lines may be indented, as in a
// definition file.
func readScript(script string, values map[string]string) {
	depth := 0
	for line := range strings.Lines(script) {
		line = strings.TrimLeft(strings.TrimRight(line, "\n"), " \t")
		if strings.HasPrefix(line, "#") {
			continue
		}
		if strings.HasPrefix(line, "export ") && depth == 0 {
			readExport(line, values)
		}
		depth = max(0, depth+nesting(line))
	}
}

// nesting returns the number of branches, loops, functions and subshells that
// begin in a line, minus the number that end there.
func nesting(line string) (n int) {
	for _, command := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(";&|", r) }) {
		words := strings.Fields(command)
		for len(words) > 0 && (slices.Contains([]string{"then", "do", "else"}, words[0]) || len(words) > 1 && strings.HasSuffix(words[0], ")") && !strings.Contains(words[0], "(")) {
			words = words[1:] // continue with the command after the keyword or the case pattern
		}
		for i, word := range words {
			switch {
			case i == 0 && slices.Contains([]string{"if", "for", "while", "until", "case", "("}, word), word == "{", strings.HasSuffix(word, "(){"):
				n++
			case i == 0 && slices.Contains([]string{"fi", "done", "esac", "}", ")"}, word):
				n--
			}
		}
	}
	return n
}

// readExport parses a line 'export NAME=WORD' and sets the values. It stops at a word that
// only a shell can evaluate. Only the shell of the runscript handles such words.
func readExport(line string, values map[string]string) {
	rest, found := strings.CutPrefix(line, "export ")
	for found && rest != "" {
		var name string
		if name, rest, found = strings.Cut(strings.TrimLeft(rest, " \t"), "="); !found || !isName(name) {
			return
		}
		w := word{rest: rest, values: values}
		value, ok := w.read(0)
		if !ok || strings.Contains(value, "\x00") {
			return
		}
		values[name] = value
		rest = w.rest
	}
}

func isName(text string) bool {
	for k, r := range text {
		if r != '_' && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (k == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return text != ""
}

// word parses a word of the shell. rest is the text to be parsed, and values holds the
// variables.
type word struct {
	rest   string
	values map[string]string
	depth  int
}

// maxNested bounds the depth of nested defaults.
const maxNested = 16

// read reads to the end of the word, or to a closing character behind it, and
// reports whether it understood the word.
func (w *word) read(until byte) (string, bool) {
	var out strings.Builder
	if w.depth++; w.depth > maxNested {
		return "", false
	}
	defer func() { w.depth-- }()
	quoted := false
	for w.rest != "" {
		c := w.rest[0]
		switch {
		case c == until && !quoted:
			w.rest = w.rest[1:]
			return out.String(), true
		case c == '"':
			quoted = !quoted
			w.rest = w.rest[1:]
		case c == '\'' && !quoted:
			text, after, closed := strings.Cut(w.rest[1:], "'")
			if !closed {
				return "", false
			}
			out.WriteString(text)
			w.rest = after
		case c == '\\':
			if len(w.rest) < 2 {
				return "", false
			}
			if quoted && !strings.ContainsRune("$`\"\\", rune(w.rest[1])) {
				out.WriteByte(c)
			}
			out.WriteByte(w.rest[1])
			w.rest = w.rest[2:]
		case c == '$':
			value, ok := w.variable()
			if !ok {
				return "", false
			}
			out.WriteString(value)
		case c == '`' || !quoted && strings.IndexByte(";&|<>()~*?[{", c) >= 0:
			return "", false
		case !quoted && until == 0 && (c == ' ' || c == '\t'):
			return out.String(), true
		default:
			out.WriteByte(c)
			w.rest = w.rest[1:]
		}
	}
	return out.String(), !quoted && until == 0
}

// variable evaluates $NAME, ${NAME}, ${NAME-WORD} or ${NAME:-WORD}, and reports whether it
// understood the expression.
func (w *word) variable() (string, bool) {
	rest := w.rest[1:]
	braces := strings.HasPrefix(rest, "{")
	if braces {
		rest = rest[1:]
	}
	end := 0
	for end < len(rest) && isName(rest[:end+1]) {
		end++
	}
	name := rest[:end]
	w.rest = rest[end:]
	value, set := w.values[name]
	if end == 0 || !braces {
		return value, end > 0
	}
	if strings.HasPrefix(w.rest, "}") {
		w.rest = w.rest[1:]
		return value, true
	}
	var empty bool
	if w.rest, empty = strings.CutPrefix(w.rest, ":"); empty {
		set = set && value != ""
	}
	var other bool
	if w.rest, other = strings.CutPrefix(w.rest, "-"); !other {
		return "", false
	}
	fallback, ok := w.read('}')
	if set {
		return value, ok
	}
	return fallback, ok
}
