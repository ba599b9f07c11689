package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/launch/supervisor"
)

// layersName is the name of the role that serves image layers.
const layersName = "layers"

// fuseDevice is the device for mounting file systems in user space.
const fuseDevice = "/dev/fuse"

// tryFUSE returns the reason why this host cannot serve images through FUSE.
func (h host) tryFUSE(ctx context.Context) error {
	if !h.state.Overlay {
		return fmt.Errorf("overlayfs cannot write to %s; name another place with --state-dir DIR", h.state.Path)
	}
	fd, err := unix.Open(fuseDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return withoutDevice(err)
	}
	if err := unix.Close(fd); err != nil {
		return err
	}
	return probe.MountFUSE(ctx)
}

// withoutDevice explains why FUSE's device cannot be opened, and adds the remedy.
func withoutDevice(err error) error {
	text := ""
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EACCES) {
		text = "; an administrator can run: modprobe fuse && chmod 0666 " + fuseDevice
	}
	return fmt.Errorf("open %s: %w%s", fuseDevice, err, text)
}

// snapshotterFor returns the snapshotter for containers here. without is the
// reason if it is not EROFS although the user left the choice open. err is the
// reason if the snapshotter that the user asked for does not work.
func (h host) snapshotterFor(ctx context.Context, asked string) (snapshotter string, without, err error) {
	if asked == cluster.Overlay {
		return asked, nil, nil
	}
	err = h.tryFUSE(ctx)
	switch {
	case err == nil:
		return cluster.EROFS, nil, nil
	case asked == cluster.EROFS:
		return "", nil, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("use the snapshotter %s: %w, or leave the option away", asked, err))
	case h.state.Overlay:
		return cluster.Overlay, err, nil
	}
	return cluster.Native, err, nil
}

// chooseImages chooses how and where this node keeps images. If layers cannot be
// single files, it warns only on the head, and only if the user gave an option
// that needs them. A site's settings do not count.
func (r *run) chooseImages(ctx context.Context) error {
	snapshotter, without, err := r.host.snapshotterFor(ctx, r.Spec.Snapshotter)
	r.host.snapshotter = snapshotter
	switch {
	case without == nil:
	case r.needsFiles() != "" && r.members.Leads():
		r.Log.Warn("images are unpacked here, without " + r.needsFiles() + ": " + without.Error())
	default:
		r.Log.Debug("images are unpacked here: " + without.Error())
	}
	if err == nil && snapshotter == cluster.EROFS {
		r.host.imageCache = r.chooseImageCache(probe.Local().CheckShared)
	}
	return err
}

// needsFiles names the options given that need layers in single files.
func (o Options) needsFiles() string {
	var options []string
	if o.Spec.NamesImageCache() && slices.Contains(o.Given, "image-cache") {
		options = append(options, "--image-cache")
	}
	if o.Spec.LazyPull && slices.Contains(o.Given, "lazy-pull") {
		options = append(options, "--lazy-pull")
	}
	return strings.Join(options, " and ")
}

// chooseImageCache returns the folder of the image cache. If the user names none,
// it is the user's cache directory, provided that other hosts see it. An empty
// string means no cache.
func (r *run) chooseImageCache(checkShared func(folder string) error) string {
	if r.Spec.ImageCache != "" {
		if !r.Spec.NamesImageCache() {
			return ""
		}
		if err := tryCache(r.Spec.ImageCache); err != nil {
			r.Log.Warn(fmt.Sprintf("layers of images are not kept in %s: %v", r.Spec.ImageCache, err))
			return ""
		}
		return r.Spec.ImageCache
	}
	made := false
	folder, err := DefaultImageCache(r.Getenv)
	if err == nil {
		err = checkShared(folder)
	}
	if err == nil {
		_ = os.MkdirAll(filepath.Dir(folder), 0o700) // Mkdir reports the error
		made = os.Mkdir(folder, 0o700) == nil
		err = makeImageCache(folder)
	}
	if err == nil {
		err = tryCache(folder)
	}
	if err != nil {
		r.Log.Debug("layers of images are not kept for other runs: " + err.Error())
		return ""
	}
	if made {
		r.Log.Info("layers of images are kept in " + folder + " from now on, for later runs; --image-cache off does without")
	}
	return folder
}

// tryCache returns the reason why a folder's file system cannot hold an image
// cache. Jobs share layers by hard links between folders, and files that other
// users can change are not trusted.
func tryCache(folder string) error {
	var dirs [2]string
	for i := range dirs {
		dir, err := os.MkdirTemp(folder, ".berth-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		dirs[i] = dir
	}
	var st unix.Stat_t
	if err := unix.Stat(dirs[0], &st); err != nil {
		return fmt.Errorf("look at %s: %w", dirs[0], err)
	}
	if st.Uid != uint32(os.Getuid()) || st.Mode&0o022 != 0 {
		return fmt.Errorf("its file system has new folders belong to user %d with mode %#o, so others may change them", st.Uid, st.Mode&0o777)
	}
	file := filepath.Join(dirs[0], "file")
	err := os.WriteFile(file, nil, 0o600)
	if err == nil {
		err = os.Link(file, filepath.Join(dirs[1], "file"))
	}
	if err != nil {
		return fmt.Errorf("its file system has to link files between folders: %w", err)
	}
	return nil
}

// makeImageCache creates the folder of the image cache.
func makeImageCache(folder string) error {
	err := os.MkdirAll(folder, 0o700)
	if err == nil && !rundir.Writable(folder) {
		err = os.ErrPermission
	}
	if err != nil {
		return exitcode.Wrap(exitcode.NoInput, fmt.Errorf("use %s as cache of images: %w; name a folder of yours with --image-cache DIR", folder, err))
	}
	return nil
}

// layers is the role that serves images to the kernel. This process also holds
// the descriptors of the role's mounts. Otherwise the mounts would end with the
// role, and with them the root file systems of pods.
type layers struct {
	// requests is the role's end of a socket, and containerd is the other end,
	// where containerd asks for mounts. Both outlive either process.
	requests, containerd *os.File

	mu   sync.Mutex
	kept []keptMount
	// alive is set while the role runs.
	alive bool
	// abandoned is set when the mounts will not be served again.
	abandoned bool
}

// keptMount holds the descriptors of one mount.
type keptMount struct {
	id    string
	data  json.RawMessage
	files []*os.File
}

// keptMessage is a message between the role and its keeper, with descriptors. A
// message from the role with descriptors keeps a mount, and Data belongs to the
// role. A message with only an ID forgets the mount. The keeper sends all mounts
// to a new role, and then an empty message.
type keptMessage struct {
	ID   string
	Data json.RawMessage
}

func newLayers() (*layers, error) {
	l := &layers{}
	var err error
	l.requests, l.containerd, err = linux.PacketFiles("mounts")
	return l, err
}

// role returns the role for the program in libexec. env is its environment and
// refused lists the addresses that it must not connect to, for its own requests
// to registries.
func (l *layers) role(c *supervisor.Supervisor, libexec string, env []string, refused []netip.Prefix) *supervisor.Role {
	var process *os.Process
	var keeping sync.WaitGroup
	return &supervisor.Role{
		Name: layersName, Path: filepath.Join(libexec, "berth-layers"),
		NotifyFlag: "--notify-fd", Passed: []supervisor.Passed{{Flag: "--requests-fd", File: l.requests}},
		Outside: true,
		Start: func(r *supervisor.Role, files []*os.File) error {
			// Read the last messages of the previous life first.
			keeping.Wait()
			conn, end, err := linux.PacketPair("keeper")
			if err != nil {
				return err
			}
			defer end.Close()
			logFile, err := os.OpenFile(r.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			if err != nil {
				conn.Close()
				return fmt.Errorf("open log: %w", err)
			}
			defer logFile.Close()
			command := exec.Command(r.Path, append(r.Arguments(), "--keeper-fd", strconv.Itoa(supervisor.NotifyFD+len(files)))...)
			for _, prefix := range refused {
				command.Args = append(command.Args, "--refuse", prefix.String())
			}
			command.Env = env
			command.Dir = "/"
			command.Stdout, command.Stderr = logFile, logFile
			command.ExtraFiles = append(slices.Clone(files), end)
			command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := command.Start(); err != nil {
				conn.Close()
				return err
			}
			process = command.Process
			l.setAlive(true)
			keeping.Go(func() { l.keep(conn) })
			c.Go(func() {
				_ = command.Wait()
				l.setAlive(false)
				c.Ended(r.Name, supervisor.Status(command.ProcessState))
				l.abandonIfDead()
			})
			return nil
		},
		Kill:   func(*supervisor.Role) { _ = process.Kill() },
		Resume: func() bool { return linux.Resume(process.Pid) },
	}
}

// keep sends the kept mounts to one life of the role, and then receives its
// messages until it ends.
func (l *layers) keep(conn *net.UnixConn) {
	defer conn.Close()
	l.mu.Lock()
	kept := slices.Clone(l.kept)
	l.mu.Unlock()
	for _, mount := range kept {
		if linux.SendPacket(conn, keptMessage{mount.id, mount.data}, mount.files...) != nil {
			return // the role has ended, and may be started again
		}
	}
	if linux.SendPacket(conn, keptMessage{}) != nil {
		return
	}
	for {
		var message keptMessage
		files, err := linux.ReceivePacket(conn, &message)
		if err != nil {
			closeAll(files)
			return
		}
		l.take(message, files)
	}
}

func (l *layers) take(message keptMessage, files []*os.File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = slices.DeleteFunc(l.kept, func(m keptMount) bool {
		if m.id == message.ID {
			closeAll(m.files)
		}
		return m.id == message.ID
	})
	if len(files) == 0 || l.abandoned {
		closeAll(files)
		return
	}
	l.kept = append(l.kept, keptMount{message.ID, message.Data, files})
}

func (l *layers) setAlive(alive bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alive = alive
}

// abandonIfDead ends all mounts if the role has ended and was not started again.
// No signal can end a process that waits for a mount that nobody serves.
func (l *layers) abandonIfDead() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.alive {
		return
	}
	l.abandoned = true
	for _, mount := range l.kept {
		closeAll(mount.files)
	}
	l.kept = nil
}

func closeAll(files []*os.File) {
	for _, file := range files {
		file.Close()
	}
}
