package fuse

import (
	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/fusewire"
	"berth.dev/berth/runtime/internal/tree"
)

// The features to request from the kernel.
const (
	flagAsyncRead      = 1 << 0
	flagExportSupport  = 1 << 4
	flagDoReaddirplus  = 1 << 13
	flagNoOpen         = 1 << 17
	flagParallelDirops = 1 << 18
	flagMaxPages       = 1 << 22
	flagCacheSymlinks  = 1 << 23
	wantedFlags        = flagAsyncRead | flagExportSupport | flagDoReaddirplus | flagNoOpen |
		flagParallelDirops | flagMaxPages | flagCacheSymlinks | fusewire.FlagNoOpendir
)

const (
	statfsSize = 80
	// background is the maximum number of requests in the background.
	background = 64
)

// attr returns the attributes of a node.
func attr(n tree.Node) fusewire.Attr {
	a := fusewire.Attr{
		ID: n.ID, Size: uint64(n.Size), Seconds: uint64(n.Seconds), Nanoseconds: n.Nanoseconds,
		Mode: uint32(n.Mode), Links: max(1, n.Links), UID: n.UID, GID: n.GID,
	}
	if kind := n.Mode & erofs.TypeMask; kind == erofs.TypeChar || kind == erofs.TypeBlock {
		a.Device = n.Device
	}
	return a
}
