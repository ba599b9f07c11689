package launch

import (
	"context"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/launch/archive"
)

// takeImages accepts archives from other runs and imports them on all nodes, until ctx
// ends.
func (r *run) takeImages(ctx context.Context) {
	for {
		images, answer, err := r.control.AwaitImages(ctx)
		if err != nil {
			return
		}
		archives, err := archive.Find(images)
		err = exitcode.Wrap(exitcode.NoInput, err)
		if err == nil {
			err = r.monitor.BringImages(ctx, archives, func() error { return r.importArchives(ctx, archives, archive.Source{}) })
		}
		if err != nil {
			answer(&persistent.Refusal{Code: exitcode.Of(err), Text: err.Error()})
			continue
		}
		answer(nil)
	}
}
