package snapshotter

import (
	"context"
	"os"

	"github.com/containerd/log"

	"berth.dev/berth/runtime/internal/idmap"
	"berth.dev/berth/runtime/internal/layer"
)

// Owners reports layers with files that have different owners on this node than in their
// image.
type Owners struct {
	// IDs maps the user and group IDs that files can have on this node.
	IDs idmap.Map
	// Notice receives a message for the user. It may be nil.
	Notice func(string)
}

func (o Owners) report(misfits *idmap.Misfits) {
	if text := misfits.String(); text != "" && o.Notice != nil {
		o.Notice(text)
	}
}

// look reports the owners recorded in the file of a layer that another node
// converted.
func (o Owners) look(ctx context.Context, path string) {
	if o.Notice == nil {
		return
	}
	file, err := os.Open(path)
	if err != nil {
		log.G(ctx).WithError(err).Warn("the owners of a layer are not known")
		return // mounting the layer reports the error
	}
	defer file.Close()
	all, err := layer.Owners(file)
	if err != nil {
		log.G(ctx).WithError(err).Warn("the owners of a layer are not known")
	}
	misfits := idmap.Misfits{Map: o.IDs}
	for _, owner := range all {
		misfits.FitAll(owner.Count, owner.Example, owner.UID, owner.GID)
	}
	o.report(&misfits)
}
