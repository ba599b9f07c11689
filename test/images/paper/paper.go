// Package paper makes the images of two experiments on image delivery (Heere,
// Containers in HPC: From Image Formats to Fast Delivery, 2026) in the same shape:
// layers, sizes, numbers of files. Debian packages replace what the paper took from
// a registry. The same inputs give the same bytes.
package paper

import (
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth.dev/berth/test/images/recipe"
)

// Worker is the program of the run phase, Pipeline the program of lazy pulling.
var (
	//go:embed worker.py
	worker string //nolint:gochecknoglobals // the only way to embed
	//go:embed pipeline.py
	pipeline string //nolint:gochecknoglobals // the only way to embed
)

// Shape configures the generated images. Paper is the shape of the paper's images.
type Shape struct {
	// Seed decides the content of what is generated.
	Seed uint64
	// Python is a folder with Python and a scientific library. Busybox and First are
	// the programs of these names.
	Python, Busybox, First string
	// Module is the library that the second checkpoint imports.
	Module string
	// Exclude lists the parts of Python that images omit.
	Exclude []string
	// Size is the size of the patched image's layers in a registry. Files in the form
	// of libraries fill what Python and the shards leave. 0: no such files.
	Size int64
	// The Layers layers together hold Files shards of ShardSize bytes.
	Layers, Files, ShardSize int
	Versions                 int
	Tiers                    []Tier
}

// Tier is an image with an asset of a size.
type Tier struct {
	Name string
	MiB  int
}

// Tiers reads tiers such as small=40,large=200.
func Tiers(text string) (tiers []Tier, err error) {
	for part := range strings.SplitSeq(text, ",") {
		var t Tier
		name, size, found := strings.Cut(part, "=")
		if _, err := fmt.Sscanf(size, "%d", &t.MiB); !found || err != nil || t.MiB < 1 || name == "" {
			return nil, fmt.Errorf("read tier %q: want NAME=MEBIBYTES", part)
		}
		t.Name = name
		tiers = append(tiers, t)
	}
	return tiers, nil
}

// Check returns everything that is wrong with a shape.
func (s Shape) Check() error {
	var problems []error
	if s.Layers < 1 || s.Files < s.Layers || s.ShardSize < 1 {
		problems = append(problems, errors.New("there must be a layer of shards, and a shard of a byte in each"))
	}
	if s.Versions < 1 {
		problems = append(problems, errors.New("there must be a version"))
	}
	if s.Module == "" {
		problems = append(problems, errors.New("there must be a module to import"))
	}
	for _, path := range []string{s.Python, s.Busybox, s.First} {
		if _, err := os.Stat(path); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// libraries is the directory of Python's modules in Debian.
const libraries = "usr/lib/python3"

// Write writes all images into a folder with an OCI layout. Their names are
// patch:v1, patch:v2, ... and lazy:TIER. Convert makes the eStargz form of an image
// in a folder, as an archive; its images are named lazy:TIER-estargz.
func (s Shape) Write(dir string, convert func(layout, archive string) error) error {
	if err := s.Check(); err != nil {
		return err
	}
	l, err := newLayout(dir)
	if err != nil {
		return err
	}
	base, err := l.layer(s.base())
	if err != nil {
		return err
	}
	modules, err := l.layer([]recipe.Entry{{Kind: recipe.Tree, Source: filepath.Join(s.Python, libraries), Path: libraries, Exclude: below(s.Exclude, libraries)}})
	if err != nil {
		return err
	}
	if err := s.patches(l, base, modules); err != nil {
		return err
	}
	for _, tier := range s.Tiers {
		if err := s.tier(l, tier, base, modules, convert); err != nil {
			return fmt.Errorf("make tier %s: %w", tier.Name, err)
		}
	}
	return l.close()
}

// base returns the layer with Python and what a shell needs.
func (s Shape) base() []recipe.Entry {
	entries := []recipe.Entry{
		{Kind: recipe.Tree, Source: s.Python, Exclude: append([]string{libraries}, s.Exclude...)},
		{Kind: recipe.Dir, Path: "tmp", Mode: 0o1777},
		{Kind: recipe.File, Source: s.Busybox, Path: "usr/bin/busybox", Mode: 0o755},
		{Kind: recipe.File, Source: s.First, Path: "usr/bin/first", Mode: 0o755},
		{Kind: recipe.Text, Path: "etc/passwd", Mode: 0o644, Text: "root:x:0:0:root:/root:/bin/sh\n"},
		{Kind: recipe.Text, Path: "etc/group", Mode: 0o644, Text: "root:x:0:\n"},
	}
	for _, name := range []string{"sh", "date", "sleep", "cat"} {
		entries = append(entries, recipe.Entry{Kind: recipe.Link, Path: "usr/bin/" + name, Target: "busybox"})
	}
	return entries
}

// patches makes the versions, which differ only in their last layer.
func (s Shape) patches(l *layout, base, modules blob) error {
	var shards []blob
	used := base.Size + modules.Size
	for n := range s.Layers {
		var entries []recipe.Entry
		for i := n * s.Files / s.Layers; i < (n+1)*s.Files/s.Layers; i++ {
			entries = append(entries, recipe.Entry{
				Kind: recipe.Text, Mode: 0o644, Path: fmt.Sprintf("opt/shards/%d/%03d/%05d.bin", n, i/256, i), Text: s.random(fmt.Sprint("shard ", i), s.ShardSize),
			})
		}
		layer, err := l.layer(entries)
		if err != nil {
			return err
		}
		shards = append(shards, layer)
		used += layer.Size
	}
	layers := []blob{base, modules}
	if s.Size > used {
		// The paper also has pyarrow, which Debian does not package.
		filled, err := l.layer(s.filled(s.Size - used))
		if err != nil {
			return err
		}
		layers[1] = filled
	}
	code, err := l.layer([]recipe.Entry{{Kind: recipe.Text, Path: "opt/worker.py", Mode: 0o644, Text: worker}})
	if err != nil {
		return err
	}
	layers = append(append(layers, shards...), code)
	for v := 1; v <= s.Versions; v++ {
		version := fmt.Sprintf("v%d", v)
		last, err := l.layer([]recipe.Entry{{Kind: recipe.Text, Path: "opt/version.txt", Mode: 0o644, Text: version + "\n"}})
		if err != nil {
			return err
		}
		if err := l.image("patch:"+version, s.Module, append(slices.Clone(layers), last)); err != nil {
			return err
		}
	}
	return nil
}

// filled returns the layer of modules, enlarged by extra files.
func (s Shape) filled(size int64) []recipe.Entry {
	entries := []recipe.Entry{{Kind: recipe.Tree, Source: filepath.Join(s.Python, libraries), Path: libraries, Exclude: below(s.Exclude, libraries)}}
	const each = 2 << 20
	for n := int64(0); n*each < size; n++ {
		entries = append(entries, recipe.Entry{
			Kind: recipe.Text, Mode: 0o644, Path: fmt.Sprintf("%s/dist-packages/filled/lib%03d.so", libraries, n),
			Text: s.random(fmt.Sprint("library ", n), int(min(each, size-n*each))),
		})
	}
	return entries
}

// tier makes an image with an asset that only the last stage reads.
func (s Shape) tier(l *layout, tier Tier, base, modules blob, convert func(layout, archive string) error) error {
	assets, err := l.layer([]recipe.Entry{
		{Kind: recipe.Text, Path: "opt/ingest.bin", Mode: 0o644, Text: s.random("ingest", 1<<20)},
		{Kind: recipe.Text, Path: "opt/reference.bin", Mode: 0o644, Text: s.random("reference", tier.MiB<<20)},
	})
	if err != nil {
		return err
	}
	code, err := l.layer([]recipe.Entry{{Kind: recipe.Text, Path: "opt/pipeline.py", Mode: 0o644, Text: pipeline}})
	if err != nil {
		return err
	}
	name := "lazy:" + tier.Name
	if err := l.image(name, s.Module, []blob{base, modules, assets, code}); err != nil {
		return err
	}
	if convert == nil {
		return nil
	}
	return l.converted(name, name+"-estargz", convert)
}

// random returns a stream of SHA-256 of the seed, a name and a counter, as in the
// paper: it cannot be compressed.
func (s Shape) random(name string, size int) string {
	var text strings.Builder
	text.Grow(size + sha256.Size)
	head := binary.BigEndian.AppendUint64([]byte(name+"\x00"), s.Seed)
	for n := uint64(0); text.Len() < size; n++ {
		sum := sha256.Sum256(binary.BigEndian.AppendUint64(slices.Clone(head), n))
		text.Write(sum[:])
	}
	return text.String()[:size]
}

// below returns the exclusions within a folder, relative to it.
func below(all []string, folder string) (within []string) {
	for _, path := range all {
		if rest, ok := strings.CutPrefix(path, folder+"/"); ok {
			within = append(within, rest)
		}
	}
	return within
}

// Key returns a digest of everything that the images depend on.
func (s Shape) Key() (string, error) {
	sum := sha256.New()
	fmt.Fprintf(sum, "%+v\n%s\n%s\n", s, worker, pipeline)
	for _, path := range []string{filepath.Join(s.Python, "VERSIONS"), s.Busybox, s.First} {
		file, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		_, err = io.Copy(sum, file)
		if err := errors.Join(err, file.Close()); err != nil {
			return "", fmt.Errorf("read %s: %w", path, err)
		}
	}
	return fmt.Sprintf("%x\n", sum.Sum(nil)), nil
}
