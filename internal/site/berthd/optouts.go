package berthd

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
)

// optOuts records the jobs on this node that want no network.
type optOuts struct {
	// dir has a file for each such job.
	dir string
	// allowed reports whether the site permits that.
	allowed bool
	log     *slog.Logger
}

func (o *optOuts) file(job uint32) string {
	return filepath.Join(o.dir, strconv.FormatUint(uint64(job), 10))
}

// add records that a job wants no network, and its user: if the job's epilog is lost, another
// user's job may get its number. The job's steps report whether the site permits this, because
// users see the output of steps.
func (o *optOuts) add(job, uid uint32) error {
	if err := os.WriteFile(o.file(job), fmt.Append(nil, uid), 0o600); err != nil {
		return fmt.Errorf("remember that job %d wants no network: %w", job, err)
	}
	o.log.Info("job wants no network", "job", job, "uid", uid, "allowed", o.allowed)
	return nil
}

// covers reports whether a user's job runs without a network.
func (o *optOuts) covers(job, uid uint32) (bool, error) {
	owner, err := os.ReadFile(o.file(job))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look whether job %d wants a network: %w", job, err)
	// An earlier version of berthd wrote no user.
	case len(owner) > 0 && string(owner) != fmt.Sprint(uid):
		return false, nil
	case !o.allowed:
		return false, errors.New("--network-pod=no is not allowed at this site: submit the job without it")
	}
	return true, nil
}

// forget removes the record of a job, if there is one.
func (o *optOuts) forget(job uint32) error {
	if err := os.Remove(o.file(job)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget that job %d wants no network: %w", job, err)
	}
	return nil
}
