package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"berth.dev/berth/bench/internal/deliver"
	"berth.dev/berth/bench/internal/registry"
	"berth.dev/berth/bench/internal/step"
)

// delivery holds the common parts of systems that images are delivered to: a
// registry, and a folder that all hosts see.
type delivery struct {
	place    Place
	images   Images
	folder   string
	registry *registry.Registry
	// address is the address of the registry for hosts.
	address string
}

// deliver calls run with a new registry and folder, which it removes afterwards.
func (p Place) deliver(ctx context.Context, images Images, run func(*delivery) (Output, error)) (out Output, err error) {
	if p.inSlurm() && len(p.Hosts) < images.Nodes {
		return out, &Unsupported{fmt.Sprintf("it needs a job of %d hosts", images.Nodes)}
	}
	if _, err := registry.Names(p.Images); err != nil {
		return out, fmt.Errorf("%w; 'make -C test/images paper' makes them, --images names their folder", err)
	}
	d := &delivery{place: p, images: images}
	if d.folder, err = os.MkdirTemp(p.Shared, "berth-bench-images-"); err != nil {
		return out, fmt.Errorf("make a folder that all hosts see: %w; --shared names one", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(d.folder)) }()
	if err := d.shards(); err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.serve(ctx, images.BitsPerSecond); err != nil {
		return out, err
	}
	return run(d)
}

// ownAddress returns the address that this machine uses towards the hosts. They may not
// reach its other addresses.
func (d *delivery) ownAddress(ctx context.Context) (string, error) {
	for _, host := range d.hosts() {
		var dialer net.Dialer
		// This sends nothing; the kernel only looks up the route.
		c, err := dialer.DialContext(ctx, "udp4", net.JoinHostPort(host, "9"))
		if err != nil {
			continue
		}
		own, is := c.LocalAddr().(*net.UDPAddr)
		_ = c.Close()
		// A host may resolve its own name to a loopback address.
		if is && own.IP.IsGlobalUnicast() {
			return own.IP.String(), nil
		}
	}
	return ownAddress()
}

// close ends the registry, if it was started.
func (d *delivery) close() error {
	if d.registry == nil {
		return nil
	}
	if err := d.registry.Close(); err != nil {
		return fmt.Errorf("end the registry: %w", err)
	}
	d.registry = nil
	return nil
}

// serve starts the registry, replacing an existing one.
func (d *delivery) serve(ctx context.Context, bitsPerSecond float64) error {
	if err := d.close(); err != nil {
		return err
	}
	started, err := registry.Serve(d.place.Images, bitsPerSecond, d.images.Delay)
	if err != nil {
		return err
	}
	d.registry = started
	host, err := d.ownAddress(ctx)
	if err != nil {
		return err
	}
	d.address = net.JoinHostPort(host, d.registry.Port())
	return nil
}

// shards makes the files that the workers read: 32 files of 1 MiB.
func (d *delivery) shards() error {
	if d.images.WorkerMB == 0 {
		return nil
	}
	folder := filepath.Join(d.folder, "shards")
	if err := os.Mkdir(folder, 0o755); err != nil {
		return fmt.Errorf("make the shards' folder: %w", err)
	}
	const files, size = 32, 1 << 20
	random := rand.NewChaCha8([32]byte{})
	content := make([]byte, size)
	for n := range files {
		_, _ = random.Read(content) // never fails
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("%03d", n)), content, 0o644); err != nil {
			return fmt.Errorf("write a shard: %w", err)
		}
	}
	return nil
}

// before returns the command that runs Place.Before on all hosts, or nil if there is none.
func (d *delivery) before() []string {
	if len(d.place.Before) == 0 {
		return nil
	}
	return d.place.stepWithoutInput(d.hosts(), d.place.Before)
}

func (d *delivery) hosts() []string {
	if !d.place.inSlurm() {
		return nil
	}
	return d.place.Hosts[:d.images.Nodes]
}

// deliver delivers images to the nodes of a cluster of berth. A command beside the cluster
// records the times. All images use one cluster, unless Images.Fresh asks for empty nodes.
func (b *berth) deliver(ctx context.Context, images Images) (Output, error) {
	return b.place.deliver(ctx, images, func(d *delivery) (Output, error) {
		if !images.Fresh {
			return b.cluster(ctx, d, images.Names)
		}
		// Filling the folder that runs share is not measured, so its rate is not limited.
		if err := d.serve(ctx, 0); err != nil {
			return Output{}, err
		}
		if out, err := b.cluster(ctx, d, images.Names); err != nil {
			return out, fmt.Errorf("deliver all images to the folder that runs share: %w", err)
		}
		if err := d.serve(ctx, images.BitsPerSecond); err != nil {
			return Output{}, err
		}
		var all Output
		var result deliver.Result
		for _, name := range images.Names {
			out, err := b.cluster(ctx, d, []string{name})
			if err != nil {
				return out, err
			}
			var one deliver.Result
			if err := json.Unmarshal([]byte(out.Stdout), &one); err != nil {
				return out, fmt.Errorf("read the times of %s: %w", name, err)
			}
			result.Images = append(result.Images, one.Images...)
			all = out
		}
		text, err := json.Marshal(result)
		all.Stdout = string(text)
		return all, err
	})
}

// cluster delivers images in a new cluster.
func (b *berth) cluster(ctx context.Context, d *delivery, names []string) (Output, error) {
	out, err := os.MkdirTemp(d.folder, "times-")
	if err != nil {
		return Output{}, fmt.Errorf("make a folder for times: %w", err)
	}
	inside := filepath.Join(deliver.Inside, filepath.Base(out))
	spec := deliver.Spec{
		Folder: out, Inside: inside, Registry: "http://" + d.address, Work: d.images.Work, Nodes: d.images.Nodes, MemoryMB: d.images.WorkerMB,
		Usage: d.place.stepWithoutInput(d.hosts(), []string{d.place.Self, step.UsageArg}), Before: d.before(),
		// The delivery must time out before the trial, so that it can report the cluster's
		// events.
		Timeout: d.place.Timeout * 9 / 10,
	}
	for _, name := range names {
		if b.form != "oci" {
			name += "-" + b.form
		}
		spec.Images = append(spec.Images, name)
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return Output{}, err
	}
	argv := append([]string{b.program, "run", "--quiet"}, replace(b.options, FolderHere, d.folder)...)
	argv = append(argv, "--mount", d.folder+":"+deliver.Inside, "--registry", d.address+"=http://"+d.address)
	if !d.place.inSlurm() && d.images.Nodes > 1 {
		argv = append(argv, "--nodes-per-host", strconv.Itoa(d.images.Nodes))
	}
	argv = append(argv, "--", d.place.Self, step.DeliverArg, string(text))
	return b.place.run(ctx, b.place.measured(d.hosts(), argv), "")
}
