package script

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"berth.dev/berth/internal/job/batch"
)

// Denied reports an option of sbatch that an object may not use.
type Denied struct{ Option, Why string }

func (d *Denied) Error() string { return fmt.Sprintf("sbatch option --%s: %s", d.Option, d.Why) }

// allowed lists the options that an object may use with any value that fits on one line. They
// choose resources, place and time, and notifications. Other options act on other users or
// clusters, on files outside the roots, or on limits of the site, or are unknown.
const allowed = " account array begin cluster-constraint comment constraint contiguous cores-per-socket cpu-freq cpus-per-gpu cpus-per-task " +
	"deadline dependency distribution exclusive extra-node-info gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task " +
	"gres gres-flags hint kill-on-invalid-dep licenses mail-type mail-user mem mem-bind mem-per-cpu mem-per-gpu mincpus nice no-kill " +
	"no-requeue nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres oom-kill-step " +
	"open-mode overcommit oversubscribe partition prefer qos requeue reservation signal sockets-per-node spread-job switches " +
	"tasks-per-node threads-per-core time time-min tmp tres-bind tres-per-task use-min-nodes wait-all-nodes wckey get-user-env umask "

// ignored lists options that only change what sbatch prints or waits for.
const ignored = " parsable quiet verbose wait ignore-pbs "

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

// check returns the options as words for sbatch, or a *Denied. Each word has the long name and
// the value of one option, so that sbatch cannot parse it in another way than check.
func (d Description) check(options []batch.Option) ([]string, error) {
	var words []string
	for _, option := range options {
		name, value := option.Name, option.Value
		hasValue := len(option.Words) > 0 && (len(option.Words) > 1 || strings.Contains(option.Words[0], "=") || value != "")
		switch {
		case name == ":":
			words = append(words, ":")
			continue
		case strings.Contains(ignored, " "+name+" "):
			continue
		case strings.ContainsFunc(value, unicode.IsControl):
			return nil, &Denied{name, "its value has control characters"}
		}
		var err error
		switch name {
		case "job-name":
			err = checkName(value)
		case "output", "error", "input", "chdir":
			err = d.checkPath(name, value)
		case "nodelist", "exclude":
			if strings.Contains(value, "/") {
				err = &Denied{name, "list the nodes instead of a file"}
			}
		case "export":
			err = checkExport(value)
		default:
			if !strings.Contains(allowed, " "+name+" ") {
				err = denied(name)
			}
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
func denied(name string) error {
	if why := reasons[name]; why != "" {
		return &Denied{name, why}
	}
	return &Denied{name, "objects may not use it: delete it"}
}

// checkName refuses a job name that would change the folder of an output file with %x in its
// path.
func checkName(name string) error {
	if strings.Contains(name, "/") || name == ".." || name == "." {
		return &Denied{"job-name", fmt.Sprintf("the name %q may not be a path", name)}
	}
	return nil
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// checkExport checks the names of the variables that --export sets. A word without "=" may be a
// keyword, a variable of sbatch's environment, which holds no secrets (see queue.JobEnv), or the
// rest of a quoted value with a comma.
func checkExport(value string) error {
	for _, word := range strings.Split(value, ",") {
		name, _, hasValue := strings.Cut(word, "=")
		if hasValue && !variable.MatchString(name) {
			return &Denied{"export", fmt.Sprintf("%q is not NAME or NAME=VALUE", word)}
		}
		if strings.HasPrefix(name, "SLURM_") || strings.HasPrefix(name, "SBATCH_") {
			return &Denied{"export", fmt.Sprintf("%s belongs to Slurm", name)}
		}
	}
	return nil
}

// checkPath refuses a path outside the roots. A placeholder such as %j stands for a name without
// a slash.
func (d Description) checkPath(option, path string) error {
	if path == "" {
		return &Denied{option, "the path is empty"}
	}
	if option != "chdir" && path == os.DevNull {
		return nil
	}
	full := path
	if !filepath.IsAbs(full) {
		full = filepath.Join(d.dir(), full)
	}
	if slices.Contains(strings.Split(path, "/"), "..") {
		return &Denied{option, fmt.Sprintf("the path %s contains '..'", path)}
	}
	if err := Within(full, d.Roots); err != nil {
		return &Denied{option, err.Error()}
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
