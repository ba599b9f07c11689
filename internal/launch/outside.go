package launch

import (
	"context"
	"errors"
	"fmt"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/slurm"
)

// ErrOutside is the error of a cluster that would start on a host of a Slurm
// cluster outside an allocation, which is probably a login host.
var ErrOutside = errors.New("this host belongs to a Slurm cluster and is in no allocation, so no cluster is started here")

// checkOutside returns ErrOutside on a host of a Slurm cluster outside an
// allocation, unless the user passes --here and the site permits it. A session that
// Slurm adopted into a job is inside.
func checkOutside(ctx context.Context, options Options, inJob bool) error {
	if inJob || options.Here && options.HereForbidden == "" || slurm.AdoptedBy() != 0 || !slurm.OnCluster(ctx, options.Getenv) {
		return nil
	}
	if err := options.Spec.Validate(); err != nil {
		return exitcode.Wrap(exitcode.Usage, err)
	}
	err := ErrOutside
	if options.Here {
		err = fmt.Errorf("%w; the site forbids --here (%s)", ErrOutside, options.HereForbidden)
	}
	return exitcode.Wrap(exitcode.Config, err)
}
