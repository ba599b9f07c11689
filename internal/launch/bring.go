package launch

import (
	"context"
	"errors"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/launch/archive"
)

// bringImages sends the archives of a run to the running cluster that it uses.
func (u *user) bringImages(ctx context.Context, archives []archive.Archive) error {
	if len(archives) == 0 {
		return nil
	}
	var images []string
	for _, a := range archives {
		image := a.Path
		if a.Name != "" {
			image = a.Name + "=" + image
		}
		images = append(images, image)
	}
	err := u.cluster.BringImages(ctx, images)
	var refusal *persistent.Refusal
	if errors.As(err, &refusal) {
		return exitcode.Wrap(refusal.Code, refusal)
	}
	if err == nil {
		u.Report("images")
	}
	return exitcode.Wrap(exitcode.Unavailable, err)
}

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
