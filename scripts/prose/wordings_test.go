package main

import (
	"go/scanner"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	entry   = regexp.MustCompile(`(?m)^### (.*)$`)
	omitted = regexp.MustCompile(`\.{3,}`)
	word    = regexp.MustCompile(`\pL{2,}`)
	// joint separates what different functions add to an error.
	joint = regexp.MustCompile(`[:;,("] ?`)
	// inserted matches values of verbs, and texts of the kernel, Go, Slurm and Kubernetes.
	inserted = regexp.MustCompile(strings.Join([]string{
		omitted.String(),
		`\b\d+(m?s|m\d+s)?\b`, `\b(FILE|LINE|KIND|NAME|FIELD|K8S_PORT|BERTH_CONFIG|BERTH_JOB|WRONG)\b`, `^(berth|pod|job|Secret|WRONG)\b`,
		`\b(newuidmap|scontrol|serve|berth-stargz|spank_berth\.so|berth\.dev/fast-path|erofs|sif:|linux/)`, `/dev/fuse`, `/bin/sh`, `\.json`,
		`\b(ended|bytes|UDP|first process|janitor|a cluster of|a host of this cluster)\b`,
		`executable file not found in \$PATH`, `no such host`, `No such file or directory`, `address already in use`,
		`device or resource busy`, `disk quota exceeded`, `execve\(\)`, `listen tcp`, `\bbind\b`,
		`Invalid value`, `Required value`, `Duplicate value`, `unknown field`, `is forbidden`, `is invalid`, `already exists`,
		`strict decoding error`, `not configured on this cluster`, `spec\.ipFamilies\[0\]`, `BackoffLimitExceeded`, `FailedMount`, `FailedCreatePodSandBox`, `CreateContainerConfigError`, `Evicted`,
		`The node was low on resource`,
	}, "|"))
)

// TestErrorsQuotesMessages checks that the programs have the messages in the headings
// of docs/errors.md, without what varies.
func TestErrorsQuotesMessages(t *testing.T) {
	t.Chdir("../..")
	source, entries := messages(t), entry.FindAllStringSubmatch(document(t, "docs/errors.md"), -1)
	if len(entries) < 300 {
		t.Errorf("found %d entries, which is too few", len(entries))
	}
	for _, m := range entries {
		for _, text := range strings.Split(m[1], " / ") {
			if !isSaid(source, text) {
				t.Errorf("docs/errors.md: no program says %q", text)
			}
		}
	}
}

func TestRewordedMessageIsFound(t *testing.T) {
	source := []string{"open the file %s: %w", "no space is left on %s", "%d nodes per host (--nodes-per-host): give 1 to %d", "%s"}
	for text, want := range map[string]bool{
		"open the file: no space is left on":               true,
		"nodes per host (--nodes-per-host): give 1 to 256": true,
		"open the file":                     true,
		"":                                  true,
		"open a file":                       false,
		"open the file: no room is left on": false,
		"nodes per host (--nodes-per-host): choose 1 to 256": false,
	} {
		if got := isSaid(source, text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// isSaid reports whether a literal has a text, or literals have all parts of it
// between joints. Other parts have more than three words. "..." and inserted texts
// stand for verbs.
func isSaid(source []string, text string) bool {
	text = strings.Trim(text, " :;,.()[]\"'`")
	if hasInOrder(source, omitted.Split(text, -1)) || hasInOrder(source, inserted.Split(text, -1)) {
		return true
	}
	cuts := joint.FindAllStringIndex(text, -1)
	for i, c := range text {
		if c == ' ' && min(len(word.FindAllString(text[:i], -1)), len(word.FindAllString(text[i:], -1))) > sentence {
			cuts = append(cuts, []int{i, i})
		}
	}
	for _, at := range cuts {
		if isSaid(source, text[:at[0]]) && isSaid(source, text[at[1]:]) {
			return true
		}
	}
	return false
}

// hasInOrder reports whether a literal has all parts, one after the other.
func hasInOrder(source, parts []string) bool {
	return slices.ContainsFunc(source, func(literal string) bool {
		for _, part := range parts {
			part = strings.TrimSpace(part)
			at := strings.Index(literal, part)
			if at < 0 {
				return false
			}
			literal = literal[at+len(part):]
		}
		return true
	})
}

// messages returns the string literals of the tracked Go files, and the text of C files
// and scripts.
func messages(t *testing.T) (all []string) {
	names, err := git("ls-files", "--", "*.go", "*.c", "*.sh", ":!test/*.sh", ":!*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.Lines(names) {
		name = strings.TrimSuffix(name, "\n")
		source := document(t, name)
		if path.Ext(name) == ".go" {
			all = append(all, joined(t, source)...)
		} else {
			all = append(all, source)
		}
	}
	return all
}

// joined returns the string literals of a Go file. A sum such as "a" + name + "b" is
// one, with a gap.
func joined(t *testing.T, source string) (all []string) {
	files := token.NewFileSet()
	var s scanner.Scanner
	s.Init(files.AddFile("", files.Base(), len(source)), []byte(source), nil, 0)
	sum := false // whether what follows can belong to the same sum
	for last, before := token.EOF, token.EOF; ; {
		_, tok, literal := s.Scan()
		switch tok {
		case token.EOF:
			return all
		case token.STRING:
			text, err := strconv.Unquote(literal)
			switch {
			case err != nil:
				t.Fatal(err)
			case sum && last == token.ADD && before == token.STRING:
				all[len(all)-1] += text
			case sum && last == token.ADD:
				all[len(all)-1] += "\n" + text
			default:
				all = append(all, text)
			}
			sum = true
		case token.ADD, token.PERIOD, token.LPAREN, token.RPAREN, token.IDENT:
			sum = sum && (last != token.STRING || tok == token.ADD)
		default:
			sum = false
		}
		last, before = tok, last
	}
}
