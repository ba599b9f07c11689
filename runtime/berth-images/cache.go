package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/imagecache"
	"berth.dev/berth/runtime/internal/imagestore"
	"berth.dev/berth/runtime/internal/layercache"
)

// cacheCommand is one command on a cache.
type cacheCommand struct {
	cache    *layercache.Cache
	platform string
	// platformNamed is set if the user named the platform.
	platformNamed bool
	// form selects the packing of layers.
	form string
	// folders lists the folders that a bundle's container sees.
	folders []imagecache.Folder
	servers map[string]string
	budget  budget.Budget
	input   io.Reader
	args    []string
	// kept holds the images that the command has put into the cache.
	kept []layercache.Image

	mu  sync.Mutex
	out *json.Encoder
}

// progressEvery is the least interval between progress reports.
const progressEvery = 200 * time.Millisecond

func useCache(ctx context.Context, name string, args []string, input io.Reader, out io.Writer) (err error) {
	commands := map[string]func(*cacheCommand, context.Context) error{
		"pull": (*cacheCommand).pull, "import": (*cacheCommand).importAll, "ls": (*cacheCommand).list,
		"export": (*cacheCommand).export, "convert": (*cacheCommand).convert,
		"bundle": (*cacheCommand).bundle, "rm": (*cacheCommand).remove, "gc": (*cacheCommand).collect, "verify": (*cacheCommand).verify,
	}
	run, known := commands[name]
	if !known {
		return errors.New(usage)
	}
	c := &cacheCommand{servers: map[string]string{}, input: input, out: json.NewEncoder(out)}
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	dir := flags.String("dir", "", "`folder` of the cache")
	limit := flags.Int64("limit", 0, "`bytes` that the cache may take")
	flags.StringVar(&c.platform, "platform", platforms.DefaultString(), "`platform` that images are for")
	flags.StringVar(&c.form, "to", "", "`form` of repacked layers")
	flags.Func("budget", "`number` that multiplies the limits on images", c.budget.Set)
	flags.Func("mount", "`SRC:DST[:ro]`, a folder for a bundle", func(text string) error {
		rest, readOnly := strings.CutSuffix(text, ":ro")
		source, target, ok := strings.Cut(rest, ":")
		if !ok {
			return fmt.Errorf("%q is not SRC:DST", text)
		}
		c.folders = append(c.folders, imagecache.Folder{Source: source, Target: target, ReadOnly: readOnly})
		return nil
	})
	flags.Func("registry", "`NAME=URL` of a registry that is elsewhere", func(text string) error {
		registry, server, ok := strings.Cut(text, "=")
		if !ok {
			return fmt.Errorf("%q is not NAME=URL", text)
		}
		c.servers[registry] = server
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	flags.Visit(func(f *flag.Flag) { c.platformNamed = c.platformNamed || f.Name == "platform" })
	if *dir == "" || *limit <= 0 {
		return errors.New(usage)
	}
	c.args = flags.Args()
	if err := log.SetLevel("fatal"); err != nil { // the libraries also return what they log
		return err
	}
	// A unique job name that no real job has.
	host, _ := os.Hostname()
	c.cache, err = layercache.Open(*dir, "image-"+host+"-"+rand.Text(), *limit, func(text string) { c.print(imagecache.Line{Warning: text}) })
	if err == nil {
		defer func() { err = errors.Join(err, c.cache.Close()) }()
		err = run(c, ctx)
	}
	if err != nil && !errors.Is(err, errReported) {
		c.fault(ctx, err)
		return errReported
	}
	return err
}

// print writes a line. It ignores errors: the command continues without a reader.
func (c *cacheCommand) print(line imagecache.Line) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.out.Encode(line)
}

func (c *cacheCommand) fault(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // the user has interrupted the command
	}
	c.print(imagecache.Line{Error: err.Error(), NoSpace: layercache.NoSpace(err)})
}

func (c *cacheCommand) image(image layercache.Image) {
	size, missing := c.cache.Size(image)
	c.print(imagecache.Line{Image: &imagecache.Image{
		Name: image.Name, Digest: image.Target.Digest.String(), Platform: image.Platform,
		Bytes: size, Layers: len(image.Layers), Missing: missing, Time: image.Time,
	}})
}

// populator puts images into the cache, and reports how much of each has arrived.
func (c *cacheCommand) populator() (*imagecache.Populator, error) {
	platform, err := platforms.Parse(c.platform)
	if err != nil {
		return nil, fmt.Errorf("parse platform %q (give one such as linux/arm64): %w", c.platform, err)
	}
	var mu sync.Mutex
	var done int64
	var reported time.Time
	return &imagecache.Populator{Cache: c.cache, Platform: platform, Chosen: c.platformNamed, Budget: c.budget, Progress: func(more, total int64) {
		mu.Lock()
		defer mu.Unlock()
		if more == 0 {
			done = 0
		}
		done += more
		if now := time.Now(); more == 0 || done == total || now.Sub(reported) > progressEvery {
			reported = now
			c.print(imagecache.Line{Progress: &[2]int64{done, total}})
		}
	}}, nil
}

// each calls do for every argument, even if it fails for some. It reports the errors, and
// then returns errReported.
func (c *cacheCommand) each(ctx context.Context, do func(string) error) (err error) {
	for _, arg := range c.args {
		if ctx.Err() != nil {
			return errReported
		}
		if one := do(arg); one != nil {
			c.fault(ctx, one)
			err = errReported
		}
	}
	return err
}

func (c *cacheCommand) pull(ctx context.Context) error {
	populator, err := c.populator()
	if err != nil {
		return err
	}
	text, err := io.ReadAll(c.input)
	if err != nil {
		return fmt.Errorf("read passwords of registries: %w", err)
	}
	registries := imagecache.Registries{Servers: c.servers}
	if len(text) > 0 {
		if registries.Logins, err = imagecache.ParseLogins(text); err != nil {
			return err
		}
	}
	err = c.each(ctx, func(name string) error {
		image, err := populator.Pull(ctx, name, registries)
		if err == nil {
			c.kept = append(c.kept, image)
			c.image(image)
		}
		return err
	})
	return c.trimmed(err)
}

func (c *cacheCommand) importAll(ctx context.Context) error {
	populator, err := c.populator()
	if err != nil {
		return err
	}
	err = c.each(ctx, func(arg string) error {
		archive, err := imagestore.ParseArchive(arg)
		if err != nil {
			return err
		}
		images, err := populator.Import(ctx, archive)
		c.kept = append(c.kept, images...)
		for _, image := range images {
			c.image(image)
		}
		return err
	})
	return c.trimmed(err)
}

// trimmed trims the cache after images were added, and returns the error before. It adds an
// error for each image that has lost layers, because the image does not fit.
func (c *cacheCommand) trimmed(before error) error {
	// Close first, because trimming keeps the layers that a job uses.
	if err := errors.Join(c.cache.Close(), c.cache.Trim(time.Now())); err != nil {
		return errors.Join(before, err)
	}
	for _, image := range c.kept {
		if _, missing := c.cache.Size(image); missing > 0 {
			before = errors.Join(before, fmt.Errorf("image %s does not fit: the folder may take %d bytes; raise --image-cache-limit", image.Name, c.cache.Limit()))
		}
	}
	return before
}

func (c *cacheCommand) list(context.Context) error {
	images, err := c.cache.Images()
	for _, image := range images {
		c.image(image)
	}
	return errors.Join(err, c.sum(imagecache.Sum{}))
}

func (c *cacheCommand) sum(line imagecache.Sum) error {
	usage, err := c.cache.Usage()
	line.Layers, line.Bytes = usage.Layers, usage.Bytes
	c.print(imagecache.Line{Sum: &line})
	return err
}

func (c *cacheCommand) remove(ctx context.Context) error {
	var only platforms.Matcher
	if c.platformNamed {
		populator, err := c.populator()
		if err != nil {
			return err
		}
		only = platforms.OnlyStrict(populator.Platform)
	}
	return c.each(ctx, func(arg string) error {
		name, err := fullName(arg)
		if err != nil {
			return err
		}
		freed, err := c.cache.Remove(name, only)
		if err == nil {
			c.print(imagecache.Line{Image: &imagecache.Image{Name: name, Freed: freed}})
		}
		return err
	})
}

// export writes the image that the first argument names to the file that the second names.
func (c *cacheCommand) export(ctx context.Context) error {
	if len(c.args) != 2 {
		return errors.New(usage)
	}
	name, err := fullName(c.args[0])
	if err != nil {
		return err
	}
	populator, err := c.populator()
	if err != nil {
		return err
	}
	image, err := populator.Named(name)
	if err != nil {
		return err
	}
	return populator.Export(ctx, image, c.args[1])
}

// convert writes the images of the first argument to the file that the second names.
func (c *cacheCommand) convert(ctx context.Context) error {
	if len(c.args) != 2 || c.args[0] == "" {
		return errors.New(usage)
	}
	form, err := imagecache.ParseForm(c.form)
	if err != nil {
		return err
	}
	populator, err := c.populator()
	if err != nil {
		return err
	}
	converted, err := populator.Convert(ctx, c.args[0], form, c.args[1])
	for _, image := range converted {
		c.print(imagecache.Line{Image: &imagecache.Image{Name: image.Name, Digest: image.Digest.String(), Bytes: image.Bytes, Layers: image.Layers}})
	}
	return err
}

// bundle makes an OCI bundle of the first argument in the folder that the second names.
func (c *cacheCommand) bundle(ctx context.Context) error {
	if len(c.args) != 2 || c.args[0] == "" || c.args[1] == "" {
		return errors.New(usage)
	}
	populator, err := c.populator()
	if err != nil {
		return err
	}
	image, made, err := populator.Bundle(ctx, c.args[0], c.args[1], c.folders)
	if err != nil {
		return err
	}
	for _, warning := range made.Warnings() {
		c.print(imagecache.Line{Warning: warning})
	}
	c.print(imagecache.Line{Image: &imagecache.Image{Name: image.Name, Digest: image.Target.Digest.String(), Platform: image.Platform, Bytes: made.Bytes, Layers: len(image.Layers)}})
	return nil
}

func (c *cacheCommand) collect(context.Context) error {
	before, err := c.cache.Usage()
	if err == nil {
		err = c.cache.Trim(time.Now())
	}
	if err != nil {
		return err
	}
	after, err := c.cache.Usage()
	return errors.Join(err, c.sum(imagecache.Sum{Freed: before.Bytes - after.Bytes}))
}

// verify reads and checks all layers and images of the cache, or only the named images.
func (c *cacheCommand) verify(ctx context.Context) error {
	images, err := c.chosen()
	if err != nil {
		return err
	}
	layers, err := c.cache.Layers()
	if err != nil {
		return err
	}
	if len(c.args) > 0 {
		layers = nil
	}
	damaged := map[string]bool{}
	fault := func(err error) {
		if !damaged[err.Error()] {
			damaged[err.Error()] = true
			c.fault(ctx, err)
		}
	}
	checked := map[digest.Digest]bool{}
	check := func(d digest.Digest) {
		if checked[d] || ctx.Err() != nil {
			return
		}
		checked[d] = true
		if err := c.cache.VerifyLayer(d); err != nil {
			fault(err)
		}
	}
	for _, image := range images {
		for _, desc := range image.Blobs {
			if _, err := c.cache.Blob(desc.Digest); err != nil {
				fault(fmt.Errorf("image %s: %w", image.Name, err))
			}
		}
		if _, missing := c.cache.Size(image); missing > 0 {
			fault(fmt.Errorf("image %s lacks %d of its %d layers: pull it again", image.Name, missing, len(image.Layers)))
		} else if len(c.args) > 0 {
			layers = append(layers, image.Layers...)
		}
	}
	for _, d := range layers {
		check(d)
	}
	c.print(imagecache.Line{Sum: &imagecache.Sum{Layers: len(checked), Damaged: len(damaged)}})
	if len(damaged) > 0 || ctx.Err() != nil {
		return errReported
	}
	return nil
}

// chosen returns the images that the arguments name, for all platforms. Without
// arguments it returns all images.
func (c *cacheCommand) chosen() ([]layercache.Image, error) {
	if len(c.args) == 0 {
		return c.cache.Images()
	}
	var images []layercache.Image
	for _, arg := range c.args {
		name, err := fullName(arg)
		if err != nil {
			return nil, err
		}
		found, err := c.cache.OfName(name)
		if err != nil {
			return nil, err
		}
		images = append(images, found...)
	}
	return images, nil
}

// fullName returns the full name for a name that a user types.
func fullName(arg string) (string, error) {
	ref, err := reference.ParseDockerRef(arg)
	if err != nil {
		return "", fmt.Errorf("parse image name %q: %w", arg, err)
	}
	return ref.String(), nil
}
