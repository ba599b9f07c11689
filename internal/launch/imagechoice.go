package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/launch/imagecache"
)

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
		return "", nil, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("use the snapshotter %s: %w, or omit the option", asked, err))
	case h.state.Overlay:
		return cluster.Overlay, err, nil
	}
	return cluster.Native, err, nil
}

// chooseImages chooses how and where this node keeps images. If layers cannot be
// single files, it warns only on the head, and only if the user gave an option
// that needs them. A site's settings do not count.
func (h *host) chooseImages(ctx context.Context, o Options, leads bool) error {
	snapshotter, without, err := h.snapshotterFor(ctx, o.Spec.Snapshotter)
	h.snapshotter = snapshotter
	switch {
	case without == nil:
	case o.needsFiles() != "" && leads:
		o.Log.Warn("images are unpacked here, without " + o.needsFiles() + ": " + without.Error())
	default:
		o.Log.Debug("images are unpacked here: " + without.Error())
	}
	if err == nil && snapshotter == cluster.EROFS {
		h.imageCache = o.chooseImageCache(probe.Local().CheckShared)
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
func (o Options) chooseImageCache(checkShared func(folder string) error) string {
	if o.Spec.ImageCache != "" {
		if !o.Spec.NamesImageCache() {
			return ""
		}
		if err := imagecache.TryFolder(o.Spec.ImageCache); err != nil {
			o.Log.Warn(fmt.Sprintf("layers of images are not kept in %s: %v", o.Spec.ImageCache, err))
			return ""
		}
		return o.Spec.ImageCache
	}
	made := false
	folder, err := imagecache.DefaultFolder(o.Getenv)
	if err == nil {
		err = checkShared(folder)
	}
	if err == nil {
		_ = os.MkdirAll(filepath.Dir(folder), 0o700) // Mkdir reports the error
		made = os.Mkdir(folder, 0o700) == nil
		err = imagecache.MakeFolder(folder)
	}
	if err == nil {
		err = imagecache.TryFolder(folder)
	}
	if err != nil {
		o.Log.Debug("layers of images are not kept for other runs: " + err.Error())
		return ""
	}
	if made {
		o.Log.Info("layers of images are kept in " + folder + " from now on, for later runs; --image-cache off does without")
	}
	return folder
}
