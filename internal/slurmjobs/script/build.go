package script

import (
	_ "embed"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/job/batch"
	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/job/slurm"
)

// Description describes the job of an object.
type Description struct {
	// UID identifies the object. Object is its namespace and name, for people.
	UID, Object string
	// Script is the object's script, and Args holds its arguments.
	Script []byte
	Args   []string
	// State is the folder that holds the folders of objects, as in queue.Options.
	State string
	// Roots lists the folders that may hold the working directory and the files of jobs.
	// The first is the default working directory.
	Roots []string

	// The following fields override the script's own options. Zero values override nothing.
	JobName, Partition string
	Nodes, Tasks       int64
	TimeLimit          time.Duration
	Features           []string // that each node must have
	Dir, Output, Error string
	// Path and LibraryPath become PATH and LD_LIBRARY_PATH of the script.
	Path, LibraryPath string
}

//go:embed guard.sh
var guard string

// Build returns the job of an object. The error is a *permit.Denied if objects may not use an option.
func Build(d Description) (queue.Job, error) {
	interpreter, err := interpreter(d.Script)
	if err != nil {
		return queue.Job{}, err
	}
	options, err := d.options()
	if err != nil {
		return queue.Job{}, err
	}
	// Each component needs the same absolute --chdir, because objects may name a relative one.
	d.Dir, _ = last(options, "chdir")
	options = slices.DeleteFunc(options, func(option batch.Option) bool { return option.Name == "chdir" })
	options = addToEach(options, "chdir", d.dir())
	words, err := d.check(options)
	if err != nil {
		return queue.Job{}, err
	}
	comment, _ := last(options, "comment")
	folder := queue.Folder(d.State, d.UID)
	command := append(interpreter, filepath.Join(folder, queue.UserScriptName))
	text := strings.NewReplacer(
		"@OBJECT@", oneLine(d.Object), "@SCRIPT@", oneLine(filepath.Join(folder, queue.UserScriptName)),
		"@FOLDER@", batch.Quote(folder), "@COMMAND@", batch.Join(command), "@ENVIRONMENT@", d.environment(),
	).Replace(guard)
	return queue.Job{
		Dir: d.dir(), Script: []byte(text), UserScript: d.Script, Args: d.Args, Comment: comment,
		// Without --ignore-pbs sbatch reads options from #PBS and #BSUB lines anywhere in a
		// script. Package queue passes the comment.
		Options: append([]string{"--ignore-pbs"}, slices.DeleteFunc(words, func(word string) bool {
			return strings.HasPrefix(word, "--comment=")
		})...),
	}, nil
}

// Dir returns the working directory of the job of an object. Of the description, it needs only
// the script, Roots and Dir.
func Dir(d Description) (string, error) {
	options, err := d.options()
	if err != nil {
		return "", err
	}
	d.Dir, _ = last(options, "chdir")
	return d.dir(), d.checkPath("chdir", d.dir())
}

// environment returns lines of shell that export variables for the object's script.
func (d Description) environment() string {
	text := ""
	for _, variable := range []struct{ name, value string }{{"PATH", d.Path}, {"LD_LIBRARY_PATH", d.LibraryPath}} {
		if variable.value != "" {
			text += "\n\texport " + variable.name + "=" + batch.Quote(variable.value)
		}
	}
	return text
}

// dir returns the working directory. A relative one is below the first root.
func (d Description) dir() string {
	switch {
	case d.Dir == "" && len(d.Roots) > 0:
		return d.Roots[0]
	case !filepath.IsAbs(d.Dir) && len(d.Roots) > 0:
		return filepath.Join(d.Roots[0], d.Dir)
	}
	return d.Dir
}

// interpreter returns the program of a script's #! line and its argument, if there is one, as
// the kernel splits the line. The batch script passes them the path of the script, so the
// script also runs from a file system that is mounted with noexec.
func interpreter(script []byte) ([]string, error) {
	line, _, _ := strings.Cut(string(script[:min(len(script), 4096)]), "\n")
	line, ok := strings.CutPrefix(line, "#!")
	line = strings.Trim(line, " \t")
	if !ok || line == "" {
		return nil, errors.New("this does not look like a batch script: its first line must be #! and the path of an interpreter, for instance #!/bin/sh")
	}
	if strings.ContainsRune(line, '\r') {
		return nil, errors.New("the script has DOS line breaks (\\r\\n) instead of UNIX line breaks (\\n)")
	}
	program, argument, _ := strings.Cut(strings.ReplaceAll(line, "\t", " "), " ")
	if argument = strings.TrimLeft(argument, " "); argument != "" {
		return []string{program, argument}, nil
	}
	return []string{program}, nil
}

// options returns the options of the script, followed by the options of the other fields.
func (d Description) options() ([]batch.Option, error) {
	words, err := directives(d.Script)
	if err != nil {
		return nil, err
	}
	options, err := parse(words)
	if err != nil {
		return nil, fmt.Errorf("#SBATCH lines of the script: %w", err)
	}
	if _, named := last(options, "job-name"); !named && d.JobName == "" {
		d.JobName = strings.ReplaceAll(d.Object, "/", ".")
	}
	if given, ok := last(options, "constraint"); ok && len(d.Features) > 0 {
		d.Features = append(d.Features, given)
	}
	for _, field := range []struct{ name, value string }{
		{"job-name", d.JobName}, {"partition", d.Partition}, {"nodes", count(d.Nodes)}, {"ntasks", count(d.Tasks)},
		{"constraint", strings.Join(d.Features, "&")}, {"chdir", d.Dir}, {"output", d.Output}, {"error", d.Error},
	} {
		if field.value != "" {
			options = addToEach(options, field.name, field.value)
		}
	}
	if d.TimeLimit > 0 {
		options = addToEach(options, "time", slurm.FormatSpan(d.TimeLimit))
	}
	return options, nil
}

// count returns a number as text, or "" for zero.
func count(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// parse splits words into the options of sbatch. It returns an error for any other word.
func parse(words []string) ([]batch.Option, error) {
	line, err := batch.Split(words, func(string) (takesValue, ok bool) { return false, false })
	if err != nil {
		return nil, err
	}
	if len(line.Command) > 0 {
		return nil, fmt.Errorf("invalid word %q", line.Command[0])
	}
	return line.Options, nil
}

// addToEach appends an option to the options of each component of a heterogeneous job, where it
// overrides an earlier option of the same name.
func addToEach(options []batch.Option, name, value string) []batch.Option {
	added := batch.Option{Name: name, Value: value, Words: []string{"--" + name + "=" + value}}
	var result []batch.Option
	for _, option := range options {
		if option.Name == ":" {
			result = append(result, added)
		}
		result = append(result, option)
	}
	return append(result, added)
}

// last returns the value of the last option with a name, and whether there is one.
func last(options []batch.Option, name string) (string, bool) {
	return batch.Arguments{Options: options}.Get(name)
}

// oneLine replaces control characters by spaces, so that a comment of a shell script can hold
// the text.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
}
