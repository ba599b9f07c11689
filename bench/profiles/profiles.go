// Package profiles has the tuning profiles of the CNI study, as data.
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
	// From says whose it is.
	From string `yaml:"from"`
	// Include is a profile whose settings come first.
	Include string `yaml:"include"`
	// Sysctls are below /proc/sys, by sysctl's names; Files are others, by patterns.
	Sysctls map[string]string `yaml:"sysctls"`
	Files   map[string]string `yaml:"files"`
	// Wake is the longest that processors may take to wake up, in µs; a descriptor that stays
	// open asks for it.
	Wake *uint32 `yaml:"wake-us"`
	// Features and Rings are of the network card, by ethtool's names.
	Features map[string]string `yaml:"features"`
	Rings    map[string]string `yaml:"rings"`
	// LeftOut lists further settings of the profile, and why they are not made.
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

// Read returns a profile with what it includes.
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
// below /proc/sys or /sys, or the interface's setting. Of several files that
// match one pattern the first counts.
func (p Profile) Settings() map[string]string {
	all := map[string]string{}
	for key, value := range p.Sysctls {
		all[strings.ReplaceAll(key, ".", "/")] = value
	}
	for path, value := range p.Files {
		all[strings.TrimPrefix(First(path), "/sys/")] = value
	}
	if p.Wake != nil {
		all["cpu_dma_latency"] = fmt.Sprint(*p.Wake) // which only root can look at
	}
	maps.Copy(all, p.Features)
	for name, value := range p.Rings {
		all[name+" ring"] = value
	}
	return all
}

// First returns the first file of a pattern.
func First(pattern string) string { return strings.ReplaceAll(pattern, "*", "0") }

// Paths returns the files of all settings that a profile sets, for records of the
// settings in effect.
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
