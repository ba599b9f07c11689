package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/events/exchange"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/log"
	"github.com/containerd/plugin"
	"golang.org/x/sys/unix"
)

// reserveSize is the space, in bytes, that is kept for containerd's own records.
const reserveSize = 2 << 20

// reservePlugin returns a plugin that reserves space on the disk, and frees it when a
// container ends and the disk is full. CRI records each end on disk. If a pod filled the disk, none of
// its containers would ever end, the kubelet could not evict the pod, and its files
// would stay.
func reservePlugin() *plugin.Registration {
	return &plugin.Registration{
		Type:     plugins.ServicePlugin,
		ID:       "berth-reserve",
		Requires: []plugin.Type{plugins.EventPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			instance, err := ic.GetSingle(plugins.EventPlugin)
			if err != nil {
				return nil, err
			}
			dir := ic.Properties[plugins.PropertyRootDir]
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return nil, fmt.Errorf("make a place for the reserve: %w", err)
			}
			r := reserve{filepath.Join(dir, "reserve")}
			r.look(ic.Context)
			ends, _ := instance.(*exchange.Exchange).Subscribe(ic.Context, fmt.Sprintf("topic==%q", runtime.TaskExitEventTopic))
			go func() {
				for range ends {
					r.look(ic.Context)
				}
			}()
			return struct{}{}, nil
		},
	}
}

// reserve is the file that takes the reserved space.
type reserve struct{ path string }

// look frees the reserve if the disk is full, and makes it again if there is much space.
func (r reserve) look(ctx context.Context) {
	var disk unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(r.path), &disk); err != nil {
		log.G(ctx).WithError(err).Warn("the free space of containerd's disk is unknown")
		return
	}
	var err error
	switch free := disk.Bavail * uint64(disk.Bsize); {
	case free < reserveSize/2:
		if err = os.Remove(r.path); err == nil {
			log.G(ctx).Warn("the disk is full: containerd's reserve is used")
		}
	case free > 4*reserveSize:
		err = r.fill()
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrExist) {
		log.G(ctx).WithError(err).Warn("containerd has no reserve on its disk")
	}
}

func (r reserve) fill() error {
	file, err := os.OpenFile(r.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(file.Fd()), 0, 0, reserveSize)
	if errors.Is(err, unix.EOPNOTSUPP) {
		_, err = file.Write(make([]byte, reserveSize))
	}
	return errors.Join(err, file.Close())
}
