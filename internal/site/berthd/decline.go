package berthd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// declinedFile is there as long as a job without a network is on this node.
func (d *Daemon) declinedFile(job uint32) string {
	return filepath.Join(d.config.Run, "declined", strconv.FormatUint(uint64(job), 10))
}

// Decline remembers that a job wants no network, and whose it is: its epilog may be lost, and its
// number be given to somebody else's job. Whether it may do without is said to its steps, whose words
// users read.
func (d *Daemon) Decline(job, uid uint32) error {
	if err := os.WriteFile(d.declinedFile(job), fmt.Append(nil, uid), 0o600); err != nil {
		return fmt.Errorf("remember that job %d wants no network: %w", job, err)
	}
	d.log.Info("job wants no network", "job", job, "uid", uid, "allowed", d.config.OptOut)
	return nil
}

// declined says whether a user's job does without a network.
func (d *Daemon) declined(job, uid uint32) (bool, error) {
	owner, err := os.ReadFile(d.declinedFile(job))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look whether job %d wants a network: %w", job, err)
	// A daemon before this one has written nobody's number.
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
