package main

import (
	"bufio"
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/module"
)

// ours is the path prefix of the modules in this repository.
const ours = "berth.dev/berth"

// Component is one thing that somebody else made.
type Component struct {
	Name, Version string
	Kind          string // golang, deb or go
	Sum           string // of a Go module, as go.sum has it
	Arch, Suite   string // of a Debian package
	dir           string // where its licences are, for Debian the file itself
	Licences      []string
	Texts         map[string]string // by file name
}

// Inventory holds the components of some directories.
type Inventory struct {
	Components map[string]*Component // by purl
	Programs   map[string][]string   // purls by the program's path
}

// Scan looks at every file below the roots, and at what is said of the packages
// of Debian in some programs: a directory for each such program's name.
func Scan(roots []string, packages map[string]string) (*Inventory, error) {
	inv := &Inventory{Components: map[string]*Component{}, Programs: map[string][]string{}}
	cache, err := goEnv("GOMODCACHE")
	if err != nil {
		return nil, err
	}
	goroot, err := goEnv("GOROOT")
	if err != nil {
		return nil, err
	}
	for _, root := range roots {
		err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			name := filepath.Join(filepath.Base(root), strings.TrimPrefix(p, root))
			return inv.program(p, name, cache, goroot)
		})
		if err != nil {
			return nil, fmt.Errorf("scan %s: %w", root, err)
		}
	}
	if len(inv.Programs) == 0 {
		return nil, fmt.Errorf("scan %s: no Go program found; build first", strings.Join(roots, " "))
	}
	for name, dir := range packages {
		if err := inv.debian(filepath.Join(dir, "VERSIONS"), name); err != nil {
			return nil, fmt.Errorf("read what Debian's packages in %s are: %w", name, err)
		}
	}
	return inv, nil
}

// goEnv asks the go command where its things are.
func goEnv(name string) (string, error) {
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		return "", fmt.Errorf("ask go for %s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

func (inv *Inventory) add(program string, c *Component) {
	purl := c.PURL()
	if inv.Components[purl] == nil {
		inv.Components[purl] = c
	}
	if !slices.Contains(inv.Programs[program], purl) {
		inv.Programs[program] = append(inv.Programs[program], purl)
	}
}

func (inv *Inventory) program(file, name, cache, goroot string) error {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return nil // no Go program
	}
	inv.add(name, &Component{Name: "go", Version: strings.TrimPrefix(info.GoVersion, "go"), Kind: "go", dir: goroot})
	deps := slices.Clone(info.Deps)
	if !strings.HasPrefix(info.Main.Path, ours) {
		deps = append(deps, &info.Main)
	}
	for _, m := range deps {
		// A module that is built from a changed copy keeps its name and licence.
		if m.Replace != nil && !strings.HasPrefix(m.Replace.Path, ".") {
			m = m.Replace
		}
		if strings.HasPrefix(m.Path, ours) || strings.HasPrefix(m.Path, ".") {
			continue
		}
		escaped, err := module.EscapePath(m.Path)
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		version, err := module.EscapeVersion(m.Version)
		if err != nil {
			return fmt.Errorf("read %s (module %s): %w", file, m.Path, err)
		}
		inv.add(name, &Component{Name: m.Path, Version: m.Version, Kind: "golang", Sum: m.Sum,
			dir: filepath.Join(cache, escaped+"@"+version)})
	}
	return nil
}

// debian reads "name version arch suite" lines.
func (inv *Inventory) debian(file, name string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for lines := bufio.NewScanner(bytes.NewReader(content)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) != 4 {
			return fmt.Errorf("read %s: line %q is not: name version arch suite", file, lines.Text())
		}
		inv.add(name, &Component{Name: f[0], Version: f[1], Kind: "deb", Arch: f[2], Suite: f[3],
			dir: filepath.Join(filepath.Dir(file), "copyright", f[0])})
	}
	return nil
}

// ReadLicences fills Licences and Texts, and reports everything without one.
func (inv *Inventory) ReadLicences() error {
	var problems []error
	for _, purl := range inv.sorted() {
		c := inv.Components[purl]
		c.Texts = map[string]string{}
		err := filepath.WalkDir(c.dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			// The Go distribution and a file of Debian's are looked at by
			// themselves, not with what lies below.
			if d.IsDir() && p != c.dir && (c.Kind == "go" || slices.Contains([]string{"testdata", "test", "vendor", ".git", "docs"}, d.Name())) {
				return fs.SkipDir
			}
			if !d.Type().IsRegular() || (c.Kind != "deb" && !isLicence(d.Name())) {
				return nil
			}
			text, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			rel := strings.TrimPrefix(strings.TrimPrefix(p, c.dir), "/")
			c.Texts[rel] = string(text)
			if c.Kind == "deb" {
				return c.common(string(text))
			}
			// The licence of the whole stands at its top.
			if !strings.Contains(rel, "/") {
				for _, id := range licences(string(text)) {
					if !slices.Contains(c.Licences, id) {
						c.Licences = append(c.Licences, id)
					}
				}
			}
			return nil
		})
		slices.Sort(c.Licences)
		if err != nil {
			problems = append(problems, fmt.Errorf("read licence of %s: %w; fetch it with: go mod download", purl, err))
		} else if len(c.Texts) == 0 {
			problems = append(problems, fmt.Errorf("read licence of %s: none in %s", purl, c.dir))
		}
	}
	return errors.Join(problems...)
}

// common adds the texts that a Debian copyright file only refers to.
func (c *Component) common(text string) error {
	for _, m := range commonLicence.FindAllStringSubmatch(text, -1) {
		file := filepath.Join(filepath.Dir(c.dir), "common-licenses", m[1])
		body, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		c.Texts["common-licenses/"+m[1]] = string(body)
		if !slices.Contains(c.Licences, m[1]) {
			c.Licences = append(c.Licences, m[1])
		}
	}
	return nil
}

var commonLicence = regexp.MustCompile(`common-licenses/([A-Za-z]+-?[0-9.]*[0-9])`)

// isLicence knows the names that licences and notices have.
func isLicence(name string) bool {
	upper := strings.ToUpper(name)
	if strings.HasSuffix(upper, ".GO") {
		return false
	}
	prefixes := []string{"LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE", "PATENTS"}
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(upper, prefix) })
}

// PURL returns the component's name as a package URL.
func (c *Component) PURL() string {
	switch c.Kind {
	case "deb":
		return fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=%s", c.Name, strings.NewReplacer(":", "%3A", "+", "%2B").Replace(c.Version), c.Arch, c.Suite)
	case "go":
		return "pkg:generic/go@" + c.Version
	}
	return fmt.Sprintf("pkg:golang/%s@%s", c.Name, strings.ReplaceAll(c.Version, "+", "%2B"))
}

func (inv *Inventory) sorted() []string {
	purls := make([]string, 0, len(inv.Components))
	for p := range inv.Components {
		purls = append(purls, p)
	}
	slices.Sort(purls)
	return purls
}
