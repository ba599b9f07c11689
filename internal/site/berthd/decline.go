package berthd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// declinedFile returns the file that exists while a job without a network is on this node.
func (d *Daemon) declinedFile(job uint32) string {
	return filepath.Join(d.config.Run, "declined", strconv.FormatUint(uint64(job), 10))
}

// Decline records that a job wants no network, and its user: if the job's epilog is lost, another
// user's job may get its number. The job's steps report whether the site permits this, because
// users see the output of steps.
func (d *Daemon) Decline(job, uid uint32) error {
	if err := os.WriteFile(d.declinedFile(job), fmt.Append(nil, uid), 0o600); err != nil {
		return fmt.Errorf("remember that job %d wants no network: %w", job, err)
	}
	d.log.Info("job wants no network", "job", job, "uid", uid, "allowed", d.config.OptOut)
	return nil
}

// declined reports whether a user's job runs without a network.
func (d *Daemon) declined(job, uid uint32) (bool, error) {
	owner, err := os.ReadFile(d.declinedFile(job))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look whether job %d wants a network: %w", job, err)
	// An earlier version of berthd wrote no user.
	case len(owner) > 0 && string(owner) != fmt.Sprint(uid):
		return false, nil
	case !d.config.OptOut:
		return false, errors.New("--network-pod=no is not allowed at this site: submit the job without it")
	}
	return true, nil
}

func (d *Daemon) forgetDeclined(job uint32) error {
	if err := os.Remove(d.declinedFile(job)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget that job %d wants no network: %w", job, err)
	}
	return nil
}
