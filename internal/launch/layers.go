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

// layersName is the role that serves the layers of images, and its program.
const layersName = "layers"

// fuseDevice is what mounts of user space are made with.
const fuseDevice = "/dev/fuse"

// tryFUSE tells why this host cannot serve images through FUSE.
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

// withoutDevice says why FUSE's device cannot be opened, and what helps.
func withoutDevice(err error) error {
	text := ""
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EACCES) {
		text = "; an administrator can run: modprobe fuse && chmod 0666 " + fuseDevice
	}
	return fmt.Errorf("open %s: %w%s", fuseDevice, err, text)
}

// snapshotterFor returns how containers get their root file systems here, and why
// it is not by EROFS where that was to be chosen. What was asked for by name and
// cannot be is the error.
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

// chooseImages chooses how this node keeps images, and where. It says why these are
// not one file for each layer only to those who have asked for what needs that
// themselves, not by a site's settings, and once for all nodes.
func (r *run) chooseImages(ctx context.Context) error {
	snapshotter, without, err := r.host.snapshotterFor(ctx, r.Spec.Snapshotter)
	r.host.snapshotter = snapshotter
	switch {
	case without == nil:
	case r.needsFiles() != "" && r.members.leads():
		r.Log.Warn("images are unpacked here, without " + r.needsFiles() + ": " + without.Error())
	default:
		r.Log.Debug("images are unpacked here: " + without.Error())
	}
	if err == nil && snapshotter == cluster.EROFS {
		r.host.imageCache = r.chooseImageCache(probe.Local().CheckShared)
	}
	return err
}

// needsFiles names the options given that need layers of one file each.
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

// chooseImageCache returns the folder of the cache of images: the user's cache
// directory, if others see it, where none is named. Empty for none.
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
		_ = os.MkdirAll(filepath.Dir(folder), 0o700) // the next one says why
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

// tryCache tells why a folder's file system is not one for a cache of images: jobs
// share layers by links between folders, and files of which others can change the
// content are not trusted.
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

// makeImageCache makes the folder of the cache of images.
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

// layers is the role that serves images to the kernel, and what is kept for it:
// its mounts would end with its descriptors, and with them the roots of pods.
type layers struct {
	// requests is the role's end of the socket on which containerd, at the
	// other end, asks for mounts. Both outlive either.
	requests, containerd *os.File

	mu   sync.Mutex
	kept []keptMount
	// alive: the role runs.
	alive bool
	// abandoned: nobody will serve them again.
	abandoned bool
}

// keptMount are the descriptors of one mount.
type keptMount struct {
	id    string
	data  json.RawMessage
	files []*os.File
}

// keptMessage is what the role and its keeper say to each other, the descriptors
// beside it: Data is the role's own and comes with a mount to keep, an ID
// alone is to be forgotten, and an empty message ends what is handed back.
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

// role returns the role itself, of a program in a directory, with what it needs to
// ask registries itself: its environment, and addresses at which it must not.
func (l *layers) role(c *supervisor.Supervisor, libexec string, env []string, refused []netip.Prefix) *supervisor.Role {
	var process *os.Process
	var keeping sync.WaitGroup
	return &supervisor.Role{
		Name: layersName, Path: filepath.Join(libexec, "berth-layers"),
		Outside: true,
		Start: func(r *supervisor.Role, files []*os.File) error {
			// What the life before has said last is read first.
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
			command := exec.Command(r.Path, "--notify-fd", "3", "--requests-fd", "4", "--keeper-fd", "5")
			for _, prefix := range refused {
				command.Args = append(command.Args, "--refuse", prefix.String())
			}
			command.Env = env
			command.Dir = "/"
			command.Stdout, command.Stderr = logFile, logFile
			command.ExtraFiles = slices.Concat(files, []*os.File{l.requests, end})
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

// keep hands one life of the role what is kept, and keeps what it says, until
// it ends.
func (l *layers) keep(conn *net.UnixConn) {
	defer conn.Close()
	l.mu.Lock()
	kept := slices.Clone(l.kept)
	l.mu.Unlock()
	for _, mount := range kept {
		if linux.SendPacket(conn, keptMessage{mount.id, mount.data}, mount.files...) != nil {
			return // it has ended, and another one follows or none
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

// abandonIfDead ends all mounts where the role has ended and was not started
// again: who waits for a mount that nobody serves can be ended by no signal.
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
