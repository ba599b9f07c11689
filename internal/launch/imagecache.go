package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/distribution/reference"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/programs"
	"berth.dev/berth/internal/kube/workload"
)

// ImageCommand is one on the cache of images, which needs no cluster: on the
// login host, where the network is, it fills the cache for nodes without.
type ImageCommand struct {
	// Name is pull, import, export, convert, bundle, ls, rm, gc or verify, and Args
	// its images, archives or folders. A bundle without a folder is for the steps that
	// name its image.
	Name string
	Args []string
	// Spec says of the cache and the registries what it does for a run.
	Spec cluster.Spec
	// Platform is the one that images are for; empty for this machine's.
	Platform string
	// Form is how convert packs layers: estargz or zstd.
	Form   string
	Getenv func(string) string
	// Notice is told what the user should know.
	Notice func(string)
	// Report is told what there is, and Progress how many bytes of how many have
	// come.
	Report   func(KeptImage)
	Progress func(done, total int64)
}

// KeptImage is an image in the cache.
type KeptImage struct {
	Name     string `json:"name"`
	Digest   string `json:"digest"`
	Platform string `json:"platform"`
	// Bytes are those of its layers that are there.
	Bytes  int64 `json:"bytes"`
	Layers int   `json:"layers"`
	// Missing is how many layers are not there.
	Missing int       `json:"missing"`
	Time    time.Time `json:"time"`
	// Freed is what the removal of the image has.
	Freed int64 `json:"freed,omitempty"`
}

// CacheSum is what a command says at its end of the cache.
type CacheSum struct {
	Layers       int
	Bytes, Freed int64
	Damaged      int
}

// imageLine is a line that the program prints.
type imageLine struct {
	Image    *KeptImage
	Progress *[2]int64
	Warning  string
	Sum      *CacheSum
	Error    string
	NoSpace  bool
}

// DefaultImageCache is the folder where none is named.
func DefaultImageCache(getenv func(string) string) (string, error) {
	if dir := getenv("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "berth"), nil
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".cache", "berth"), nil
	}
	return "", exitcode.Wrap(exitcode.Usage, errors.New("no folder for images: HOME is not set; name one with --image-cache DIR"))
}

// Images runs a command on the cache of images.
func Images(ctx context.Context, c ImageCommand) (sum CacheSum, err error) {
	args, err := c.arguments()
	if err != nil {
		return sum, err
	}
	directory, err := programs.Dir()
	if err != nil {
		return sum, err
	}
	var passwords []byte
	if c.Name == "pull" {
		p := pulls{}
		p.readPasswords(ctx, c.Getenv)
		for _, notice := range p.notices {
			c.Notice(notice)
		}
		passwords = p.passwords
	}
	command := exec.CommandContext(ctx, filepath.Join(directory, "berth-images"), args...)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is ours to pass on
	command.Stdin = bytes.NewReader(passwords)
	var words bytes.Buffer
	command.Stderr = &words
	command.Env = pullEnv(c.Getenv)
	lines, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		return sum, fmt.Errorf("start %s: %w; unpack the whole archive, bin/ and libexec/ side by side", command.Path, err)
	}
	sum, problems := c.read(lines)
	err = command.Wait()
	switch {
	case ctx.Err() != nil:
		return sum, context.Cause(ctx)
	case problems != nil:
		return sum, problems
	case err != nil:
		return sum, fmt.Errorf("%s: %w: %s", command.Path, err, strings.TrimSpace(words.String()))
	}
	return sum, nil
}

// arguments are the program's. What is wrong with them is said first.
func (c ImageCommand) arguments() ([]string, error) {
	spec := cluster.Spec{
		Command: []string{c.Name}, Snapshotter: cluster.EROFS, NodesPerHost: 1,
		Registries: c.Spec.Registries, Mounts: c.Spec.Mounts, ImageCache: c.Spec.ImageCache, ImageCacheLimit: c.Spec.ImageCacheLimit,
	}
	if err := spec.Validate(); err != nil {
		return nil, exitcode.Wrap(exitcode.Usage, err)
	}
	limit, err := spec.ImageCacheBytes()
	if err != nil {
		return nil, exitcode.Wrap(exitcode.Usage, err)
	}
	if err := makeImageCache(spec.ImageCache); err != nil {
		return nil, err
	}
	args := []string{"cache", c.Name, "--dir", spec.ImageCache, "--limit", strconv.FormatInt(limit, 10)}
	if c.Platform != "" {
		args = append(args, "--platform", c.Platform)
	}
	if c.Form != "" {
		args = append(args, "--to", c.Form)
	}
	for _, registry := range spec.Registries {
		args = append(args, "--registry", registry)
	}
	for _, value := range spec.Mounts {
		mount, err := cluster.ParseMount(value)
		if err != nil {
			return nil, exitcode.Wrap(exitcode.Usage, err)
		}
		value = mount.Source + ":" + mount.Target
		if mount.ReadOnly {
			value += ":ro"
		}
		args = append(args, "--mount", value)
	}
	images := c.Args
	if c.Name == "bundle" && len(images) == 1 {
		folder, err := stepBundle(spec.ImageCache, images[0])
		if err != nil {
			return nil, err
		}
		images = []string{images[0], folder}
	}
	return slices.Concat(args, []string{"--"}, images), nil
}

// stepBundle is where a bundle is made that is given no folder: there the SPANK plugin of the site
// network (spank/image.c) looks for the image that a step names. Others who share the cache
// could not enter it.
func stepBundle(cache, name string) (string, error) {
	image, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return "", exitcode.Wrap(exitcode.Usage, fmt.Errorf("image %q: %w", name, err))
	}
	all := filepath.Join(cache, fmt.Sprintf("bundles-%d", os.Getuid()))
	if err := os.Mkdir(all, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", exitcode.Wrap(exitcode.NoInput, fmt.Errorf("make a folder for bundles: %w", err))
	}
	return filepath.Join(all, strings.ReplaceAll(reference.FamiliarString(reference.TagNameOnly(image)), "/", "%2F")), nil
}

// pullEnv are the variables that pulling knows; files of settings may give them.
func pullEnv(getenv func(string) string) []string {
	return append(os.Environ(), inEitherCase(getenv, "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")...)
}

// read passes on what the program says. What is wrong is the error, all of it.
func (c ImageCommand) read(lines io.Reader) (sum CacheSum, err error) {
	code := exitcode.NoInput
	if c.Name == "pull" {
		code = exitcode.Unavailable
	}
	var problems []error
	decoder := json.NewDecoder(lines)
	for {
		var line imageLine
		if err := decoder.Decode(&line); err != nil {
			break // the end
		}
		switch {
		case line.Image != nil:
			c.Report(*line.Image)
		case line.Progress != nil:
			c.Progress(line.Progress[0], line.Progress[1])
		case line.Warning != "":
			c.Notice(line.Warning)
		case line.Sum != nil:
			sum = *line.Sum
		case line.Error != "":
			text := line.Error
			if remedy := workload.PullRemedy(text); remedy != "" {
				text += "; " + remedy
			}
			if line.NoSpace {
				code = exitcode.NoSpace
				text += "; " + c.moreRoom()
			}
			problems = append(problems, errors.New(text))
		}
	}
	return sum, exitcode.Wrap(code, errors.Join(problems...))
}

// moreRoom says what to do where the disk is full.
func (c ImageCommand) moreRoom() string {
	switch c.Name {
	case "bundle":
		return "make room there, or name a folder elsewhere"
	case "export", "convert":
		return "make room there, or name a file elsewhere (archives are read by way of the folder --image-cache)"
	}
	return "name another folder with --image-cache DIR, or make room with berth image gc --image-cache-limit SIZE"
}
