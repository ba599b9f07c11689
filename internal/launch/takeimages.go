package launch

import (
	"context"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/launch/archive"
)

// takeImages imports the archives that other runs bring, until ctx ends.
func (r *run) takeImages(ctx context.Context) {
	for {
		images, answer, err := r.control.AwaitImages(ctx)
		if err != nil {
			return
		}
		if err := r.spreadImages(ctx, images); err != nil {
			answer(&persistent.Refusal{Code: exitcode.Of(err), Text: err.Error()})
			continue
		}
		answer(nil)
	}
}

// spreadImages imports archives on all nodes.
func (r *run) spreadImages(ctx context.Context, images []string) error {
	archives, err := archive.Find(images)
	if err != nil {
		return exitcode.Wrap(exitcode.NoInput, err)
	}
	here := func() error { return r.importArchives(ctx, archives, archive.Source{}) }
	if !r.members.Several() {
		return here()
	}
	return r.monitor.BringImages(ctx, archives, here)
}
