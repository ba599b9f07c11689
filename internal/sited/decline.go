package sited

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

// Decline remembers that a job wants no network. Whether it may do without is
// said to its steps, whose words users read.
func (d *Daemon) Decline(job uint32) error {
	if err := os.WriteFile(d.declinedFile(job), nil, 0o600); err != nil {
		return fmt.Errorf("remember that job %d wants no network: %w", job, err)
	}
	d.log.Info("job wants no network", "job", job, "allowed", d.config.OptOut)
	return nil
}

// declined says whether a job does without a network.
func (d *Daemon) declined(job uint32) (bool, error) {
	_, err := os.Stat(d.declinedFile(job))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look whether job %d wants a network: %w", job, err)
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
