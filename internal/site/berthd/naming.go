package berthd

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"berth.dev/berth/internal/site/siteconf"
)

// name replaces the names of a job, which must belong to the user and have a pod here.
func (d *daemon) name(ctx context.Context, uid, job uint32, text string) error {
	names, err := siteconf.ParseNames(text)
	if err != nil {
		return fmt.Errorf("name job %d: %w", job, err)
	}
	a, err := d.pods.owned(uid, job)
	if err != nil {
		return err
	}
	return d.jobNames.setUser(ctx, a, names)
}

// nameRun gives a job these names in addition to its others, for as long as the
// returned file is open somewhere. The answer contains the domain of the names and,
// if they have changed too often, how long it takes until they are known.
func (d *daemon) nameRun(ctx context.Context, uid, job uint32, text string, answer map[string]string) ([]*os.File, error) {
	if d.config.DNS.Program == "" {
		return nil, fmt.Errorf("name job %d: this site's network has no names ('dns' in its configuration)", job)
	}
	a, err := d.pods.owned(uid, job)
	if err != nil {
		return nil, err
	}
	run, wait, err := d.runs.add(ctx, a, text)
	if err != nil {
		return nil, err
	}
	answer["domain"] = a.Domains(d.config.Cluster, nil)[0]
	if wait > 0 {
		answer["wait"] = strconv.Itoa(int(wait/time.Second) + 1)
	}
	return []*os.File{run}, nil
}
