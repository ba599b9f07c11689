package script

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/job/batch"
)

// Files returns the working directory of a job with a number, and the paths of its standard output
// and standard error. The paths are equal if the job writes both into one file. A path is empty if
// the job writes no file. The error is a *permit.Denied if the working directory is outside the roots.
func (d Description) Files(id string) (dir, output, errors string, err error) {
	options, err := d.options()
	if err != nil {
		return "", "", "", err
	}
	if dir, err = Dir(d); err != nil {
		return "", "", "", err
	}
	if i := slices.IndexFunc(options, func(option batch.Option) bool { return option.Name == ":" }); i >= 0 {
		options = options[:i] // the batch script runs in the first component
	}
	if _, array := last(options, "array"); array {
		return "", "", "", fmt.Errorf("the elements of an array job write to different files")
	}
	name, _ := last(options, "job-name")
	pattern, _ := last(options, "output")
	if pattern == "" {
		pattern = "slurm-%j.out"
	}
	if output, err = path(pattern, dir, id, name); err != nil {
		return "", "", "", err
	}
	errors = output
	if pattern, _ = last(options, "error"); pattern != "" {
		errors, err = path(pattern, dir, id, name)
	}
	return dir, output, errors, err
}

var placeholder = regexp.MustCompile(`%[0-9]*.?`)

// path returns the path of a file whose name may contain placeholders, as in sbatch. It is empty for
// /dev/null.
func path(pattern, dir, id, name string) (string, error) {
	if pattern == os.DevNull {
		return "", nil
	}
	var unknown string
	expand := func(text string) string {
		value, width := "", strings.Trim(text[:len(text)-1], "%")
		switch text[len(text)-1] {
		case '%':
			return "%"
		case 'j', 'A':
			digits, _ := strconv.Atoi(width)
			value = strings.Repeat("0", max(0, min(digits, 10)-len(id))) + id
		case 'x':
			value = name
		case 'u':
			if current, err := user.Current(); err == nil {
				value = current.Username
			}
		}
		if value == "" {
			unknown = text
		}
		return value
	}
	full := strings.ReplaceAll(pattern, `\`, "") // which means no placeholders
	if full == pattern {
		full = placeholder.ReplaceAllStringFunc(pattern, expand)
	}
	if unknown != "" {
		return "", fmt.Errorf("the file name %q of the job's output has the placeholder %s, which is only known to Slurm: use %%j, %%x or %%u", pattern, unknown)
	}
	if !filepath.IsAbs(full) {
		full = filepath.Join(dir, full)
	}
	return full, nil
}
