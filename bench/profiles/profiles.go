// Package profiles holds the tuning profiles of tuned and of the CNI study. Applying them
// belongs to the program that sets up a link.
package profiles

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed *.yaml
var files embed.FS //nolint:gochecknoglobals // the only way to embed

// Profile is a set of an operator's settings on both hosts.
type Profile struct {
	// From names the source of the profile.
	From string `yaml:"from"`
	// Include names a profile with further settings, which this profile overrides.
	Include string `yaml:"include"`
	// Sysctls holds values by the names of sysctl, and Files the content of other files by
	// patterns of their paths.
	Sysctls map[string]string `yaml:"sysctls"`
	Files   map[string]string `yaml:"files"`
	// Wake is the longest time in µs that a processor may take to wake up. It is in effect
	// while a process has /dev/cpu_dma_latency open.
	Wake *uint32 `yaml:"wake-us"`
	// Features and Rings hold settings of the network card, by ethtool's names.
	Features map[string]string `yaml:"features"`
	Rings    map[string]string `yaml:"rings"`
	// LeftOut lists settings of the source that are not applied, with the reasons.
	LeftOut []string `yaml:"left-out"`
}

// Names returns the names of the profiles.
func Names() (names []string) {
	entries, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil
	}
	for _, name := range entries {
		names = append(names, strings.TrimSuffix(name, ".yaml"))
	}
	return names
}

// Read returns a profile, including the settings of the profile that it includes. It returns
// an error for an unknown name.
func Read(name string) (p Profile, err error) {
	text, err := files.ReadFile(name + ".yaml")
	if err != nil {
		return p, fmt.Errorf("there is no profile %q: there are %s", name, strings.Join(Names(), ", "))
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&p); err != nil {
		return p, fmt.Errorf("read the profile %s: %w", name, err)
	}
	if p.Include == "" {
		return p, nil
	}
	base, err := Read(p.Include)
	if err != nil {
		return p, err
	}
	for _, of := range []struct{ base, own *map[string]string }{
		{&base.Sysctls, &p.Sysctls}, {&base.Files, &p.Files}, {&base.Features, &p.Features}, {&base.Rings, &p.Rings},
	} {
		all := map[string]string{}
		maps.Copy(all, *of.base)
		maps.Copy(all, *of.own)
		*of.own = all
	}
	if p.Wake == nil {
		p.Wake = base.Wake
	}
	p.LeftOut = slices.Concat(base.LeftOut, p.LeftOut)
	return p, nil
}

// Settings returns the profile's settings under the names in records: the path
// below /proc/sys or /sys, or the name of the interface's setting. A pattern stands for its
// first file (First).
func (p Profile) Settings() map[string]string {
	all := map[string]string{}
	for key, value := range p.Sysctls {
		all[strings.ReplaceAll(key, ".", "/")] = value
	}
	for path, value := range p.Files {
		all[strings.TrimPrefix(First(path), "/sys/")] = value
	}
	if p.Wake != nil {
		all["cpu_dma_latency"] = fmt.Sprint(*p.Wake) // only root can read it
	}
	maps.Copy(all, p.Features)
	for name, value := range p.Rings {
		all[name+" ring"] = value
	}
	return all
}

// First returns the path of the first file that a pattern matches: patterns have a * in the
// place of a number.
func First(pattern string) string { return strings.ReplaceAll(pattern, "*", "0") }

// Paths returns the files that the profiles write to, so that records can have the settings
// in effect.
func Paths() []string {
	all := map[string]bool{}
	for _, name := range Names() {
		p, err := Read(name)
		if err != nil {
			continue // a test reads them all
		}
		for key := range p.Sysctls {
			all["/proc/sys/"+strings.ReplaceAll(key, ".", "/")] = true
		}
		for path := range p.Files {
			all[First(path)] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}
