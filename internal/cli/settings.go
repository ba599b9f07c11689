package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"berth.dev/berth/internal/access/login"
	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/settings"
)

// notSettable returns the options of a run that no file may give: they select the
// workload, open a host to others, or are for debugging.
func notSettable() []string {
	return []string{"file", "logs", "state", "publish", "nodes-per-host", "debug-dir", "slurm-jobs", "results-image", "s3-endpoint"}
}

// settableVariables returns the variables of the environment that a file may give.
func settableVariables() []string {
	return []string{
		"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
		"BERTH_REMOTE_PATH", "BERTH_TUNNEL_IDLE",
	}
}

// pathOptions lists the options that take a path. In a settings file the path
// must be absolute, because there is no directory that it could be relative to.
func pathOptions() []string {
	return []string{"state-dir", "shared-volumes", "rendezvous-dir", "image", "image-cache", "mount"}
}

// forbiddable returns the options that a site may forbid.
func forbiddable() []string { return []string{"here"} }

// oneFileOptions lists the options that need each layer as one file.
func oneFileOptions() []string { return []string{"image-cache", "lazy-pull"} }

// preferences holds the files of the site and of the user.
type preferences struct {
	files  []*settings.File // the site's first
	getenv func(string) string
	// forbidden maps an option that the site forbids to the place in its file.
	forbidden map[string]string
}

// setting is an option in effect that is not berth's own default.
type setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	// From is FILE:LINE, the name of a variable, or "environment".
	From string `json:"from"`
}

// readPreferences reads the files of the site and of the user. Its error lists all
// problems in them.
func readPreferences(getenv func(string) string) (*preferences, error) {
	p := &preferences{getenv: getenv, forbidden: map[string]string{}}
	paths, named := settings.Paths(getenv)
	var problems []error
	for i, path := range paths {
		file, err := settings.Read(path)
		problems = append(problems, err)
		if file == nil {
			if err == nil && i == 0 && named {
				problems = append(problems, fmt.Errorf("read settings: there is no file %s, which %s names", path, settings.Variable))
			}
			continue
		}
		problems = append(problems, check(file))
		p.files = append(p.files, file)
		if i == 0 {
			p.forbid(file)
		} else if len(file.Forbid) > 0 {
			problems = append(problems, fmt.Errorf("%s:%d: only the site's file can forbid options", path, file.Forbid[0].Line))
		}
	}
	if named {
		// A file named by the variable replaces the site's file, but does not permit
		// what the site forbids. Other problems of the site's file are not reported.
		if file, _ := settings.Read(settings.SitePath); file != nil {
			p.forbid(file)
		}
	}
	if err := errors.Join(problems...); err != nil {
		return nil, &exitcode.Error{Code: exitcode.Config, Err: err}
	}
	return p, nil
}

func (p *preferences) forbid(file *settings.File) {
	for _, entry := range file.Forbid {
		p.forbidden[entry.Name] = fmt.Sprintf("%s:%d", file.Path, entry.Line)
	}
}

// settable returns the options that a file may give.
func settable() (*pflag.FlagSet, *cluster.Spec) {
	spec := &cluster.Spec{}
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	addSpecFlags(all, spec)
	addHereFlag(all, new(bool))
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	all.VisitAll(func(flag *pflag.Flag) {
		if !slices.Contains(notSettable(), flag.Name) {
			flags.AddFlag(flag)
		}
	})
	return flags, spec
}

// check returns all problems of a file in one error.
func check(file *settings.File) error {
	flags, spec := settable()
	var problems []error
	var said []string
	fault := func(entry settings.Entry, format string, values ...any) {
		problems = append(problems, fmt.Errorf("%s:%d: %s", file.Path, entry.Line, fmt.Sprintf(format, values...)))
	}
	for _, entry := range file.Options {
		flag := flags.Lookup(entry.Name)
		switch {
		case flag == nil && slices.Contains(notSettable(), entry.Name):
			fault(entry, "the option %s is for the command line only", entry.Name)
			continue
		case flag == nil:
			fault(entry, "unknown option %q: 'berth run --help' lists them", entry.Name)
			continue
		}
		_, many := flag.Value.(pflag.SliceValue)
		if entry.List && !many {
			fault(entry, "the option %s takes one value", entry.Name)
			continue
		}
		for _, value := range entry.Values {
			path := value
			if entry.Name == "image" {
				_, path, _ = cluster.SplitImage(value)
			}
			if entry.Name == "image-cache" && cluster.NamesNoFolder(value) {
				path = "/"
			}
			if slices.Contains(pathOptions(), entry.Name) && !filepath.IsAbs(path) {
				fault(entry, "%s %s: give a path from the root", entry.Name, value)
			} else if err := flag.Value.Set(value); err != nil {
				fault(entry, "%v", wrongValue(flag, value, err))
			}
		}
		for _, problem := range wrongAlone(entry) {
			fault(entry, "%s", problem)
			said = append(said, problem)
		}
	}
	for _, entry := range file.Forbid {
		if !slices.Contains(forbiddable(), entry.Name) {
			fault(entry, "the option %s cannot be forbidden, only %s can", entry.Name, strings.Join(forbiddable(), ", "))
		}
	}
	for _, entry := range file.Environment {
		if !slices.Contains(settableVariables(), entry.Name) {
			fault(entry, "the variable %s is not one of %s", entry.Name, strings.Join(settableVariables(), ", "))
		} else if entry.List {
			fault(entry, "the variable %s takes one value", entry.Name)
		}
	}
	for _, problem := range mistakes(spec) {
		if !slices.Contains(said, problem) { // a problem of several options in combination
			problems = append(problems, fmt.Errorf("%s: %s", file.Path, problem))
		}
	}
	return errors.Join(problems...)
}

// mistakes returns the problems of a spec, apart from its missing workload.
func mistakes(spec *cluster.Spec) (all []string) {
	spec.Command = []string{"true"}
	if err := spec.Validate(); err != nil {
		for problem := range strings.Lines(err.Error()) {
			all = append(all, strings.TrimSpace(problem))
		}
	}
	return all
}

// wrongAlone returns the problems of one option's values that do not depend on other
// options.
func wrongAlone(entry settings.Entry) []string {
	flags, spec := settable()
	for _, value := range entry.Values {
		if flags.Set(entry.Name, value) != nil {
			return nil // check reports that
		}
	}
	return mistakes(spec)
}

// variable returns the name of the variable for an option.
func variable(option string) string {
	return "BERTH_" + strings.ToUpper(strings.ReplaceAll(option, "-", "_"))
}

// Getenv returns a variable of the environment, or else the value in a file; the
// user's file comes before the site's.
func (p *preferences) Getenv(name string) string {
	value, _ := p.lookup(name)
	return value
}

// lookup returns the value that Getenv returns, and its source for setting.From.
func (p *preferences) lookup(name string) (value, from string) {
	if value := p.getenv(name); value != "" {
		return value, "environment"
	}
	for _, file := range slices.Backward(p.files) {
		for _, entry := range file.Environment {
			if entry.Name == name && len(entry.Values) == 1 {
				return entry.Values[0], fmt.Sprintf("%s:%d", file.Path, entry.Line)
			}
		}
	}
	return "", ""
}

// apply sets options that are not on the command line: from the environment,
// else from the user's file, else from the site's file. Repeatable options are
// collected from all of them, the command line's last. It returns the settings
// in effect. The options do not count as changed, because that means that the
// user has typed them.
func (p *preferences) apply(flags *pflag.FlagSet) ([]setting, error) {
	known, _ := settable()
	var effects []setting
	var problems []error
	known.VisitAll(func(option *pflag.Flag) {
		flag := flags.Lookup(option.Name)
		if flag == nil || p.unpacks(flags) && slices.Contains(oneFileOptions(), flag.Name) {
			return
		}
		list, many := flag.Value.(pflag.SliceValue)
		if flag.Changed && !many {
			return
		}
		values, effect := p.valuesOf(flag.Name, many)
		if len(values) == 0 {
			return
		}
		effects = append(effects, effect...)
		var err error
		switch {
		case many:
			err = list.Replace(append(values, list.GetSlice()...))
		case flag.Name == "state-dir" && effect[0].From == variable(flag.Name):
			// The variable only suggests a directory; package probe decides.
		default:
			err = flag.Value.Set(values[0])
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", effect[0].From, wrongValue(flag, values[0], err)))
		}
	})
	if err := errors.Join(problems...); err != nil {
		return nil, &exitcode.Error{Code: exitcode.Config, Err: err}
	}
	return effects, nil
}

// unpacks reports whether the run unpacks layers. Then the settings of oneFileOptions
// do not apply.
func (p *preferences) unpacks(flags *pflag.FlagSet) bool {
	flag := flags.Lookup("snapshotter")
	if flag == nil || flag.Changed {
		return flag != nil && flag.Value.String() == cluster.Overlay
	}
	values, _ := p.valuesOf(flag.Name, false)
	return slices.Equal(values, []string{cluster.Overlay})
}

// valuesOf returns the values of an option from settings files and the environment:
// all of a repeatable option, the site's first; otherwise the value that applies.
func (p *preferences) valuesOf(option string, many bool) (values []string, effects []setting) {
	for _, file := range p.files {
		for _, entry := range file.Options {
			if entry.Name != option {
				continue
			}
			if !many {
				values, effects = nil, nil
			}
			values = append(values, entry.Values...)
			effects = append(effects, setting{option, strings.Join(entry.Values, " "), fmt.Sprintf("%s:%d", file.Path, entry.Line)})
		}
	}
	name := variable(option)
	text := p.getenv(name)
	if text == "" {
		return values, effects
	}
	own := []string{text}
	if many {
		own = strings.Fields(text)
	} else {
		values, effects = nil, nil
	}
	return append(values, own...), append(effects, setting{option, text, name})
}

// inEffect returns all settings that differ from berth's defaults, with their
// sources.
func (p *preferences) inEffect() ([]setting, error) {
	flags, _ := settable()
	effects, err := p.apply(flags)
	for _, name := range settableVariables() {
		if value, from := p.lookup(name); value != "" {
			effects = append(effects, setting{name, value, from})
		}
	}
	for _, name := range forbiddable() {
		if from := p.forbidden[name]; from != "" {
			effects = append(effects, setting{"forbid", name, from})
		}
	}
	return effects, err
}

// newPlace returns this host with the settings of the files and the environment.
func newPlace() (*login.Place, error) {
	p, err := readPreferences(os.Getenv)
	if err != nil {
		return nil, err
	}
	return login.NewPlace(p.Getenv)
}

// prefer applies the files and the environment to the flags of a command. It returns
// the preferences, whose Getenv replaces os.Getenv from then on.
func prefer(flags *pflag.FlagSet) (*preferences, error) {
	p, err := readPreferences(os.Getenv)
	if err != nil {
		return nil, err
	}
	if _, err := p.apply(flags); err != nil {
		return nil, err
	}
	return p, nil
}
