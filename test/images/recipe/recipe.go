// Package recipe makes image archives for tests from a short text. The text lists
// files, their paths and owners, and the image's configuration. It needs no
// container engine, no root and no network, and the same inputs give the same
// bytes. It is no general image builder: nothing runs in the image.
//
// A recipe has one instruction a line; # starts a comment. SRC is a path below
// the directory given to Parse, PATH one inside the image.
//
//	tag NAME                            docker.io/library/hello:1; one or more
//	layer                               what follows goes into a new layer
//	dir PATH [MODE [UID:GID]]           default 0755 0:0
//	file SRC PATH [MODE [UID:GID]]      default: the mode of SRC, 0:0
//	text PATH MODE UID:GID "quoted"     a Go string literal
//	link TARGET PATH                    a symbolic link
//	links TARGET DIR NAME...            one symbolic link each in DIR; a NAME
//	                                    @SRC stands for the words in that file
//	tree SRC PATH                       a whole directory, all 0:0
//	exclude PREFIX...                   left out of the trees after it
//	env NAME=VALUE
//	label NAME=VALUE
//	user USER   workdir PATH   stopsignal NAME
//	expose PORT/PROTOCOL   volume PATH
//	entrypoint ["JSON", ...]   cmd ["JSON", ...]
//	compression gzip|zstd|none          default gzip
package recipe

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Recipe is a parsed recipe.
type Recipe struct {
	Tags        []string
	Layers      [][]Entry
	Config      v1.Config
	Compression string // gzip, zstd or none
}

// Entry is one instruction that puts files into a layer.
type Entry struct {
	Kind     Kind
	Path     string // inside the image, without a leading slash
	Mode     int64  // -1: as the source
	UID, GID int
	Source   string   // on this machine, of a File or Tree
	Target   string   // of a Link
	Text     string   // of a Text
	Exclude  []string // of a Tree: prefixes below Source
}

// Kind is the type of the file that an Entry makes.
type Kind int

// The kinds of entries.
const (
	Dir Kind = iota
	File
	Text
	Link
	Tree
)

// Parse reads a recipe. Every problem is reported, each with its line.
func Parse(in io.Reader, sources string) (Recipe, error) {
	p := parser{sources: sources, r: Recipe{Compression: "gzip", Layers: [][]Entry{nil}}}
	p.r.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	var problems []error
	lines := bufio.NewScanner(in)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		if err := p.instruction(word, strings.TrimSpace(rest)); err != nil {
			problems = append(problems, fmt.Errorf("line %d (%s): %w", n, word, err))
		}
	}
	problems = append(problems, lines.Err())
	if len(p.r.Tags) == 0 {
		problems = append(problems, errors.New("no tag: add a line such as: tag docker.io/library/hello:1"))
	}
	return p.r, errors.Join(problems...)
}

type parser struct {
	sources string
	exclude []string
	r       Recipe
}

func (p *parser) instruction(word, rest string) error {
	args := strings.Fields(rest)
	need := func(least, most int) error {
		if len(args) < least || len(args) > most {
			return fmt.Errorf("got %d words, want %d to %d", len(args), least, most)
		}
		return nil
	}
	c := &p.r.Config
	switch word {
	case "layer":
		p.r.Layers = append(p.r.Layers, nil)
		return need(0, 0)
	case "dir", "file", "text", "link", "links", "tree":
		return p.entry(word, rest, args)
	case "exclude":
		p.exclude = append(p.exclude, args...)
		return nil
	case "entrypoint":
		return json.Unmarshal([]byte(rest), &c.Entrypoint)
	case "cmd":
		return json.Unmarshal([]byte(rest), &c.Cmd)
	case "env":
		c.Env = append(c.Env, rest)
		return nil
	}
	if err := need(1, 1); err != nil {
		return err
	}
	switch word {
	case "tag":
		p.r.Tags = append(p.r.Tags, rest)
	case "user":
		c.User = rest
	case "workdir":
		c.WorkingDir = rest
	case "stopsignal":
		c.StopSignal = rest
	case "compression":
		if rest != "gzip" && rest != "zstd" && rest != "none" {
			return fmt.Errorf("unknown compression %q", rest)
		}
		p.r.Compression = rest
	case "expose":
		add(&c.ExposedPorts, rest)
	case "volume":
		add(&c.Volumes, rest)
	case "label":
		k, v, ok := strings.Cut(rest, "=")
		if !ok {
			return fmt.Errorf("want NAME=VALUE, got %q", rest)
		}
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		c.Labels[k] = v
	default:
		return errors.New("no such instruction")
	}
	return nil
}

func add(set *map[string]struct{}, key string) {
	if *set == nil {
		*set = map[string]struct{}{}
	}
	(*set)[key] = struct{}{}
}

func (p *parser) entry(word, rest string, args []string) error {
	e := Entry{Mode: -1}
	least := map[string]int{"dir": 1, "file": 2, "text": 4, "link": 2, "links": 3, "tree": 2}[word]
	if len(args) < least {
		return fmt.Errorf("got %d words, want at least %d", len(args), least)
	}
	var owner []string // MODE and UID:GID, where given
	switch word {
	case "dir":
		e.Kind, e.Path, e.Mode, owner = Dir, args[0], 0o755, args[1:]
	case "file":
		e.Kind, e.Source, e.Path, owner = File, filepath.Join(p.sources, args[0]), args[1], args[2:]
	case "tree":
		e.Kind, e.Source, e.Path, owner = Tree, filepath.Join(p.sources, args[0]), args[1], args[2:]
		e.Exclude = p.exclude
	case "link":
		e.Kind, e.Target, e.Path, owner = Link, args[0], args[1], args[2:]
	case "text":
		e.Kind, e.Path, owner = Text, args[0], args[1:3]
		_, quoted, _ := strings.Cut(rest, `"`)
		text, err := strconv.Unquote(`"` + quoted)
		if err != nil {
			return fmt.Errorf("want a quoted Go string at the end: %w", err)
		}
		e.Text = text
	case "links":
		return p.links(args[0], args[1], args[2:])
	}
	if len(owner) > 2 || (len(owner) > 0 && (word == "tree" || word == "link")) {
		return fmt.Errorf("unexpected words %q", owner)
	}
	if len(owner) > 0 {
		mode, err := strconv.ParseInt(owner[0], 8, 64)
		if err != nil {
			return fmt.Errorf("parse mode %q as an octal number: %w", owner[0], err)
		}
		e.Mode = mode
	}
	if len(owner) > 1 {
		if _, err := fmt.Sscanf(owner[1], "%d:%d", &e.UID, &e.GID); err != nil {
			return fmt.Errorf("parse owner %q as UID:GID: %w", owner[1], err)
		}
	}
	p.append(e)
	return nil
}

func (p *parser) links(target, dir string, names []string) error {
	for _, name := range names {
		if list, ok := strings.CutPrefix(name, "@"); ok {
			content, err := os.ReadFile(filepath.Join(p.sources, list))
			if err != nil {
				return err
			}
			if err := p.links(target, dir, strings.Fields(string(content))); err != nil {
				return err
			}
		} else if name != target {
			p.append(Entry{Kind: Link, Target: target, Path: path.Join(dir, name)})
		}
	}
	return nil
}

func (p *parser) append(e Entry) {
	e.Path = strings.Trim(path.Clean(e.Path), "/")
	if e.Path == "." {
		e.Path = ""
	}
	last := len(p.r.Layers) - 1
	p.r.Layers[last] = append(p.r.Layers[last], e)
}
