package imagecache

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

	"github.com/distribution/reference"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/programs"
	"berth.dev/berth/internal/kube/workload"
	"berth.dev/berth/internal/launch/pulls"
)

// Command is a command on the image cache. It needs no cluster. On a login
// host with access to the network, it fills the cache for nodes without.
type Command struct {
	// Name is pull, import, export, convert, bundle, ls, rm, gc or verify. Args
	// are its images, archives or folders. A bundle without a folder is for steps
	// that name its image.
	Name string
	Args []string
	// Spec configures the cache and the registries, as for a run.
	Spec cluster.Spec
	// Platform is the platform of the images. It defaults to this machine's.
	Platform string
	// Form selects how convert packs layers: estargz or zstd.
	Form   string
	Getenv func(string) string
	// Notice receives messages for the user.
	Notice func(string)
	// Report receives each image in the cache. Progress receives the number of
	// bytes received and their total.
	Report   func(Image)
	Progress func(done, total int64)
}

// Run runs a command on the image cache.
func Run(ctx context.Context, c Command) (sum Sum, err error) {
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
		p := pulls.Settings{}
		p.ReadPasswords(ctx, c.Getenv)
		for _, notice := range p.Notices {
			c.Notice(notice)
		}
		passwords = p.Passwords
	}
	command := exec.CommandContext(ctx, filepath.Join(directory, "berth-images"), args...)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C reaches this process, which passes it on
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

// arguments returns the arguments of berth-images. It checks them first.
func (c Command) arguments() ([]string, error) {
	spec := cluster.Spec{
		Command: []string{c.Name}, Snapshotter: cluster.EROFS, NodesPerHost: 1,
		Registries: c.Spec.Registries, Mounts: c.Spec.Mounts, ImageCache: c.Spec.ImageCache, ImageCacheLimit: c.Spec.ImageCacheLimit,
		ImageBudget: c.Spec.ImageBudget,
	}
	if err := spec.Validate(); err != nil {
		return nil, exitcode.Wrap(exitcode.Usage, err)
	}
	limit, err := spec.ImageCacheBytes()
	if err != nil {
		return nil, exitcode.Wrap(exitcode.Usage, err)
	}
	if err := MakeFolder(spec.ImageCache); err != nil {
		return nil, err
	}
	args := []string{"cache", c.Name, "--dir", spec.ImageCache, "--limit", strconv.FormatInt(limit, 10), "--budget", strconv.Itoa(max(1, spec.ImageBudget))}
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

// stepBundle returns the default folder of a bundle. The SPANK plugin of the site
// network (spank/image.c) looks there for the image that a step names. The folder
// is closed to other users who share the cache.
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

// pullEnv returns the environment of a pull, with the proxy variables. Settings
// files may set them.
func pullEnv(getenv func(string) string) []string {
	return append(os.Environ(), pulls.InEitherCase(getenv, "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")...)
}

// read passes the program's output on. It returns all problems in one error.
func (c Command) read(lines io.Reader) (sum Sum, err error) {
	code := exitcode.NoInput
	if c.Name == "pull" {
		code = exitcode.Unavailable
	}
	var problems []error
	decoder := json.NewDecoder(lines)
	for {
		var line Line
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
				text += "; " + c.spaceRemedy()
			}
			problems = append(problems, errors.New(text))
		}
	}
	return sum, exitcode.Wrap(code, errors.Join(problems...))
}

// spaceRemedy returns the remedy for a full disk.
func (c Command) spaceRemedy() string {
	switch c.Name {
	case "bundle":
		return "make room there, or name a folder elsewhere"
	case "export", "convert":
		return "make room there, or name a file elsewhere (archives are read by way of the folder --image-cache)"
	}
	return "name another folder with --image-cache DIR, or make room with berth image gc --image-cache-limit SIZE"
}
