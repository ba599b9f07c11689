package imagecache

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/layercache"
	"berth.dev/berth/runtime/internal/rootfs"
	"berth.dev/berth/runtime/internal/tree"
)

// Folder is a folder of the host that a container can see.
type Folder struct {
	Source, Target string
	ReadOnly       bool
}

// Bundled describes a bundle that was made.
type Bundled struct {
	// Bytes is the size of the content that was written.
	Bytes int64
	// Left counts what is missing or different in the bundle.
	Left rootfs.Left
	// User is the user of the image's process, if it is not root.
	User string
}

// Warnings describes the differences from the image that the user should know.
func (b Bundled) Warnings() (all []string) {
	if b.User != "" {
		all = append(all, fmt.Sprintf("the image's process runs as user %s; in the bundle it is you, who are root inside", b.User))
	}
	if b.Left.Owners > 0 {
		all = append(all, fmt.Sprintf("%d files belong to other users in the image; in the bundle all are yours", b.Left.Owners))
	}
	if b.Left.Special+b.Left.Attributes+b.Left.SetID > 0 {
		all = append(all, fmt.Sprintf("left out: %d devices and pipes, %d extended attributes, set-user bits of %d programs", b.Left.Special, b.Left.Attributes, b.Left.SetID))
	}
	return all
}

const (
	bundleConfig = "config.json"
	bundleRoot   = "rootfs"
	// bundleVersion is a version of the specification that has every field used
	// here.
	bundleVersion = "1.0.2"
	// maxPasswd bounds the passwd file of an image.
	maxPasswd = 1 << 20
)

// Bundle makes an OCI bundle of an image in the cache, at a path that does not
// exist or is an empty folder. The bundle appears there only when it is complete.
func (p *Populator) Bundle(ctx context.Context, name, dir string, folders []Folder) (image layercache.Image, made Bundled, err error) {
	if image, err = p.named(name); err != nil {
		return image, made, err
	}
	if err = checkEmpty(dir); err == nil {
		made, err = p.bundle(ctx, image, filepath.Clean(dir), folders)
	}
	if err != nil {
		err = fmt.Errorf("bundle %s in %s: %w", image.Name, dir, err)
	}
	return image, made, err
}

func checkEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(entries) > 0:
		return errors.New("the folder is not empty: name another one, or remove it")
	}
	return nil
}

func (p *Populator) bundle(ctx context.Context, image layercache.Image, dir string, folders []Folder) (made Bundled, err error) {
	text, err := configuration(p.Cache, image)
	if err != nil {
		return made, err
	}
	var config ocispec.Image
	if err := json.Unmarshal(text, &config); err != nil {
		return made, fmt.Errorf("parse the image's configuration: %w", err)
	}
	// Only the owner may enter the bundle, because images have folders that anyone may
	// write to.
	temporary := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+"-"+rand.Text())
	if err := os.Mkdir(temporary, 0o700); err != nil {
		return made, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temporary))
		}
	}()
	if err := os.Mkdir(filepath.Join(temporary, bundleRoot), 0o755); err != nil {
		return made, err
	}
	root, err := os.OpenRoot(filepath.Join(temporary, bundleRoot))
	if err != nil {
		return made, err
	}
	defer root.Close()
	total, _ := p.Cache.Size(image)
	p.Progress(0, total)
	err = p.withTree(image, func(merged *tree.Tree, size int64) error {
		left, err := rootfs.Write(ctx, merged, root, p.Budget.Layer(size), func(n int) {
			// Layers may repeat bytes or omit them.
			if more := min(int64(n), total-made.Bytes); more > 0 {
				p.Progress(more, total)
			}
			made.Bytes += int64(n)
		})
		made.Left = left
		return err
	})
	if err != nil {
		return made, err
	}
	made.User = otherUser(config.Config.User)
	spec := runtimeSpec(config.Config, home(root, config.Config.User), folders)
	for _, m := range spec.Mounts {
		// Ignore other errors: the runtime creates the mount points that are missing,
		// such as those behind links that lead out of the root.
		if err := mountpoint(root, m); errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			return made, fmt.Errorf("make a place for %s: %w", m.Destination, err)
		}
	}
	encoded, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return made, err
	}
	if err := os.WriteFile(filepath.Join(temporary, bundleConfig), append(encoded, '\n'), 0o600); err != nil {
		return made, err
	}
	// os.Rename does not replace an empty folder.
	if err := unix.Rename(temporary, dir); err != nil {
		return made, &os.LinkError{Op: "rename", Old: temporary, New: dir, Err: err}
	}
	return made, nil
}

// withTree calls use with the tree of an image, and the size of its layers in bytes. It
// returns the error of use.
func (p *Populator) withTree(image layercache.Image, use func(*tree.Tree, int64) error) error {
	var layers []*erofs.Image
	var size int64
	for _, id := range image.Layers {
		path, err := p.Cache.Take(id)
		if err == nil && path == "" {
			err = fmt.Errorf("%w: pull the image again", fs.ErrNotExist)
		}
		if err != nil {
			return fmt.Errorf("layer %s: %w", id, err)
		}
		layer, file, err := erofs.OpenFile(path)
		if err != nil {
			return fmt.Errorf("layer %s: %w", id, err)
		}
		defer file.Close()
		layer.MultiplyLimits(p.Budget.Times())
		size += layer.Size()
		layers = append(layers, layer)
	}
	slices.Reverse(layers)
	merged, err := tree.New(layers)
	if err != nil {
		return err
	}
	return use(merged, size)
}

// runtimeSpec returns the container's runtime configuration. An ordinary user
// runs it and is root inside. It has the host's network and the job's devices,
// like other programs that Slurm starts.
func runtimeSpec(image ocispec.ImageConfig, home string, folders []Folder) specs.Spec {
	spec := specs.Spec{
		Version: bundleVersion,
		Root:    &specs.Root{Path: bundleRoot, Readonly: true},
		Process: &specs.Process{
			Args: slices.Concat(image.Entrypoint, image.Cmd), Env: slices.Clone(image.Env),
			Cwd: cmp.Or(image.WorkingDir, "/"), NoNewPrivileges: true,
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
		},
		Linux: &specs.Linux{
			// Shared memory and host names stay the host's, because each task of
			// an MPI program has its own container.
			Namespaces:    []specs.LinuxNamespace{{Type: specs.UserNamespace}, {Type: specs.MountNamespace}, {Type: specs.PIDNamespace}},
			UIDMappings:   []specs.LinuxIDMapping{{HostID: uint32(os.Geteuid()), Size: 1}},
			GIDMappings:   []specs.LinuxIDMapping{{HostID: uint32(os.Getegid()), Size: 1}},
			MaskedPaths:   []string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/scsi", "/sys/firmware"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	if len(spec.Process.Args) == 0 {
		spec.Process.Args = []string{"/bin/sh"}
	}
	if !filepath.IsAbs(spec.Process.Cwd) {
		spec.Process.Cwd = "/" + spec.Process.Cwd
	}
	for name, value := range map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": home} {
		if !slices.ContainsFunc(spec.Process.Env, func(v string) bool { return strings.HasPrefix(v, name+"=") }) {
			spec.Process.Env = append(spec.Process.Env, name+"="+value)
		}
	}
	slices.Sort(spec.Process.Env)
	memory := func(target string) specs.Mount {
		return specs.Mount{Destination: target, Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}}
	}
	spec.Mounts = []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		bind("/dev", "/dev", false), bind("/sys", "/sys", true),
		memory("/tmp"), memory("/var/tmp"), memory("/run"),
	}
	for _, name := range hostFiles {
		spec.Mounts = append(spec.Mounts, bind(name, name, true))
	}
	for _, f := range folders {
		spec.Mounts = append(spec.Mounts, bind(f.Source, f.Target, f.ReadOnly))
	}
	return spec
}

// hostFiles lists the node's files that replace the image's in containers.
var hostFiles = []string{"/etc/resolv.conf", "/etc/hosts"}

// capabilities lists the capabilities of root in containers. Here they do not
// exceed the user's rights.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

func bind(source, target string, readOnly bool) specs.Mount {
	m := specs.Mount{Destination: target, Type: "bind", Source: source, Options: []string{"rbind"}}
	if target != "/dev" {
		m.Options = append(m.Options, "nosuid", "nodev")
	}
	if readOnly {
		m.Options = append(m.Options, "ro")
	}
	return m
}

// mountpoint creates a mount point in the bundle: a folder, or an empty file. Several nodes
// may use a bundle at once, and should not have to create it.
func mountpoint(root *os.Root, m specs.Mount) error {
	name := strings.TrimPrefix(m.Destination, "/")
	if m.Type != "bind" {
		return root.MkdirAll(name, 0o755)
	}
	// Nodes have these files, even if this host does not.
	if !slices.Contains(hostFiles, m.Source) {
		source, err := os.Stat(m.Source)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the node knows whether it is a folder or a file
		}
		if err != nil || source.IsDir() {
			return root.MkdirAll(name, 0o755)
		}
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	info, err := root.Lstat(name)
	if err == nil && info.Mode().IsRegular() {
		return nil
	}
	if err == nil {
		// The image has a link there, usually to a file that a service would write.
		if err := root.Remove(name); err != nil {
			return err
		}
	}
	file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return file.Close()
}

// otherUser returns the user of the image's process without its group, or "" for root.
func otherUser(user string) string {
	name, _, _ := strings.Cut(user, ":")
	if name == "root" || name == "0" {
		return ""
	}
	return name
}

// home returns the home folder of a user, by the image's passwd file. Without an entry it
// returns /root for root, and / for others.
func home(root *os.Root, user string) string {
	name := cmp.Or(otherUser(user), "root")
	file, err := root.Open("etc/passwd")
	if err == nil {
		defer file.Close()
		lines := bufio.NewScanner(io.LimitReader(file, maxPasswd))
		for lines.Scan() {
			fields := strings.Split(lines.Text(), ":")
			if len(fields) >= 6 && (fields[0] == name || fields[2] == name) && filepath.IsAbs(fields[5]) {
				return fields[5]
			}
		}
	}
	if name == "root" {
		return "/root"
	}
	return "/"
}
