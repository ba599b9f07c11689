// Package settings reads the settings files of the site and of users, which set
// defaults for berth's options. It defines the format of the files. The command
// line defines the options and their values.
package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"
)

// Variable names a file to read instead of the site's file, for testing.
const Variable = "BERTH_CONFIG"

// SitePath is the path of the site's file.
const SitePath = "/etc/berth/config.yaml"

// File holds the contents of one file.
type File struct {
	Path string
	// Options lists settings by option name, without dashes.
	Options []Entry
	// Environment lists variables that only berth sees, not the programs that it
	// starts for the user. A variable that is already set keeps its value.
	Environment []Entry
	// Forbid names options that nobody may use. Only the site's file may forbid
	// options.
	Forbid []Entry
}

// Entry is a line of a file.
type Entry struct {
	Name string
	// Values holds one value, or several if List is true.
	Values []string
	List   bool
	Line   int
}

// Paths returns the paths of the settings files, the site's first. If named is
// true, the user named the first one, and it must exist.
func Paths(getenv func(string) string) (paths []string, named bool) {
	site := SitePath
	if path := getenv(Variable); path != "" {
		site, named = path, true
	}
	paths = []string{site}
	home := getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(home) {
		if home = getenv("HOME"); home != "" {
			home = filepath.Join(home, ".config")
		}
	}
	if home != "" {
		paths = append(paths, filepath.Join(home, "berth", "config.yaml"))
	}
	return paths, named
}

// Read reads a file. The error lists all mistakes in the file, and Read also returns the
// part without mistakes. If the file does not exist, Read returns nil and no error.
func Read(path string) (*File, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read settings: %w", err)
	}
	return parse(path, content)
}

// parse reads the content of a file.
func parse(path string, content []byte) (*File, error) {
	file := &File{Path: path}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var document yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return file, nil // empty, or comments only
	} else if err != nil {
		return file, fmt.Errorf("%s: %w", path, err)
	}
	p := &parser{path: path}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		p.fault(&document, "a second document; a settings file has one")
	}
	p.each(document.Content[0], func(key, value *yaml.Node) {
		switch key.Value {
		case "options":
			file.Options = p.entries(value)
		case "environment":
			file.Environment = p.entries(value)
		case "forbid":
			file.Forbid = p.names(value)
		default:
			p.fault(key, "unknown section %q: there are options, environment and forbid", key.Value)
		}
	})
	return file, errors.Join(p.faults...)
}

// parser collects the mistakes.
type parser struct {
	path   string
	faults []error
}

func (p *parser) fault(at *yaml.Node, format string, values ...any) {
	p.faults = append(p.faults, fmt.Errorf("%s:%d: %s", p.path, at.Line, fmt.Sprintf(format, values...)))
}

// each calls do for all pairs of a mapping. It refuses repeated keys.
func (p *parser) each(mapping *yaml.Node, do func(key, value *yaml.Node)) {
	switch {
	case mapping.Kind == yaml.ScalarNode && mapping.Tag == "!!null":
		return // a section with only comments
	case mapping.Kind != yaml.MappingNode:
		p.fault(mapping, "write lines of the form 'name: value'")
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		if seen[key.Value] {
			p.fault(key, "%s is given twice", key.Value)
			continue
		}
		seen[key.Value] = true
		do(key, value)
	}
}

func (p *parser) entries(section *yaml.Node) (entries []Entry) {
	p.each(section, func(key, value *yaml.Node) {
		entry := Entry{Name: key.Value, Line: key.Line}
		switch value.Kind {
		case yaml.ScalarNode:
			if value.Tag == "!!null" {
				p.fault(key, "%s has no value", key.Value)
				return
			}
			entry.Values = []string{value.Value}
		case yaml.SequenceNode:
			entry.List = true
			for _, item := range value.Content {
				if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
					p.fault(item, "%s takes a list of single values", key.Value)
					return
				}
				entry.Values = append(entry.Values, item.Value)
			}
		default:
			p.fault(value, "%s takes a value, or a list of values", key.Value)
			return
		}
		entries = append(entries, entry)
	})
	return entries
}

func (p *parser) names(section *yaml.Node) (entries []Entry) {
	if section.Kind == yaml.ScalarNode && section.Tag == "!!null" {
		return nil // all lines are commented out
	}
	if section.Kind != yaml.SequenceNode {
		p.fault(section, "forbid takes a list of options, such as '- here'")
		return nil
	}
	for _, item := range section.Content {
		if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
			p.fault(item, "give the name of an option")
			continue
		}
		entries = append(entries, Entry{Name: item.Value, Line: item.Line})
	}
	return entries
}
