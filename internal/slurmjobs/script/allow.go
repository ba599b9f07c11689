package script

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"berth.dev/berth/internal/job/batch"
	"berth.dev/berth/internal/job/permit"
)

// allowed lists the options that an object may use with any value that permit.Check permits: those
// of package permit, and options of a batch script.
const allowed = permit.Placement + permit.Resources +
	" array comment distribution gpu-bind mem-bind no-kill no-requeue oom-kill-step open-mode overcommit requeue signal tres-bind " +
	"wait-all-nodes get-user-env umask "

// reasons holds the reason for each denied option that users may expect to work.
var reasons = map[string]string{
	"hold":        "berth submits every job held, and releases it: delete this option",
	"uid":         "the job runs as the user of the controller",
	"gid":         "the job runs as the user of the controller",
	"wrap":        "put the command into the script",
	"clusters":    "the controller serves one Slurm: start another controller for the other cluster",
	"export-file": "it reads a file of the user: use --export=NAME=VALUE",
	"propagate":   "set limits with ulimit in the script",
	"test-only":   "it submits no job",
}

// check returns the options as words for sbatch, or a *permit.Denied. Each word has the long name
// and the value of one option, so that sbatch cannot parse it in another way than check.
func (d Description) check(options []batch.Option) ([]string, error) {
	var words []string
	for _, option := range options {
		name, value := option.Name, option.Value
		hasValue := len(option.Words) > 0 && (len(option.Words) > 1 || strings.Contains(option.Words[0], "=") || value != "")
		switch {
		case name == ":":
			words = append(words, ":")
			continue
		case permit.In(permit.Ignored, name):
			continue
		}
		err := permit.Check(option)
		switch {
		case err != nil:
		case name == "output", name == "error", name == "input", name == "chdir":
			err = d.checkPath(name, value)
		case name == "export":
			err = checkExport(value)
		case !permit.In(allowed, name):
			err = denied(name)
		}
		if err != nil {
			return nil, err
		}
		word := "--" + name
		if hasValue {
			word += "=" + value
		}
		words = append(words, word)
	}
	return words, nil
}

// denied returns the error for an option that objects may not use.
func denied(option string) error {
	if why := reasons[option]; why != "" {
		return &permit.Denied{Option: option, Why: why}
	}
	return &permit.Denied{Option: option, Why: "objects may not use it: delete it"}
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// checkExport checks the names of the variables that --export sets. A word without "=" may be a
// keyword, a variable of sbatch's environment, which holds no secrets (see queue.JobEnv), or the
// rest of a quoted value with a comma.
func checkExport(value string) error {
	for _, word := range strings.Split(value, ",") {
		name, _, hasValue := strings.Cut(word, "=")
		if hasValue && !variable.MatchString(name) {
			return &permit.Denied{Option: "export", Why: fmt.Sprintf("%q is not NAME or NAME=VALUE", word)}
		}
		if strings.HasPrefix(name, "SLURM_") || strings.HasPrefix(name, "SBATCH_") {
			return &permit.Denied{Option: "export", Why: fmt.Sprintf("%s belongs to Slurm", name)}
		}
	}
	return nil
}

// checkPath refuses a path outside the roots. A placeholder such as %j stands for a name without
// a slash.
func (d Description) checkPath(option, path string) error {
	if path == "" {
		return &permit.Denied{Option: option, Why: "the path is empty"}
	}
	if option != "chdir" && path == os.DevNull {
		return nil
	}
	full := path
	if !filepath.IsAbs(full) {
		full = filepath.Join(d.dir(), full)
	}
	if slices.Contains(strings.Split(path, "/"), "..") {
		return &permit.Denied{Option: option, Why: fmt.Sprintf("the path %s contains '..'", path)}
	}
	if err := Within(full, d.Roots); err != nil {
		return &permit.Denied{Option: option, Why: err.Error()}
	}
	return nil
}

// Within returns an error if an absolute path is outside the roots. It resolves symbolic links
// as far as the path exists.
func Within(path string, roots []string) error {
	_, _, err := Below(path, roots)
	return err
}

// Below returns the root that an absolute path is in, and the path below the root, both without
// symbolic links. It returns an error if the path is outside the roots.
func Below(path string, roots []string) (root, rest string, err error) {
	real, err := resolve(path)
	if err != nil {
		return "", "", err
	}
	for _, root := range roots {
		if root, err = resolve(root); err != nil {
			continue
		}
		if rest, err := filepath.Rel(root, real); err == nil && filepath.IsLocal(rest) {
			return root, rest, nil
		}
	}
	return "", "", fmt.Errorf("%s is outside the folders that objects may use: %s", real, strings.Join(roots, ", "))
}

// resolve resolves the symbolic links in a path whose end need not exist. It returns an error
// for a symbolic link without a target.
func resolve(path string) (string, error) {
	path = filepath.Clean(path)
	rest := ""
	for {
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			return filepath.Join(real, rest), nil
		}
		if _, exists := os.Lstat(path); exists == nil {
			return "", fmt.Errorf("the symbolic link %s leads nowhere", path)
		}
		if path == "/" || path == "." {
			return "", err
		}
		rest = filepath.Join(filepath.Base(path), rest)
		path = filepath.Dir(path)
	}
}
