package snapshotter

import (
	"context"
	"os"

	"github.com/containerd/log"

	"berth.dev/berth/runtime/internal/idmap"
	"berth.dev/berth/runtime/internal/layer"
)

// Owners tells the user of layers whose files have other owners on this node than in
// their image.
type Owners struct {
	// IDs are the user and group ids that files can have here.
	IDs idmap.Map
	// Notice tells the user; nil tells nobody.
	Notice func(string)
}

func (o Owners) tell(misfits *idmap.Misfits) {
	if text := misfits.String(); text != "" && o.Notice != nil {
		o.Notice(text)
	}
}

// look reads the owners of a layer that this node did not convert from its file.
func (o Owners) look(ctx context.Context, path string) {
	if o.Notice == nil {
		return
	}
	file, err := os.Open(path)
	if err != nil {
		log.G(ctx).WithError(err).Warn("the owners of a layer are not known")
		return // who uses the layer reports what is wrong with it
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
	o.tell(&misfits)
}
