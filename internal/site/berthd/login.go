package berthd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
)

// login returns the namespaces of the pod that a user's session enters. On a login host that is
// the user's pod for sessions, which the first session makes. Elsewhere it is the pod of a job:
// the job that adopted the session's process pid, or the user's newest job. On a login host the
// last file is the lock that the session must hold. The answer also describes the files that
// the session sees, because berth-session reads no configuration.
func (d *daemon) login(ctx context.Context, uid uint32, user string, pid int32, answer map[string]string) ([]*os.File, error) {
	if d.config.Sessions.Image != "" {
		answer["image"] = d.config.Sessions.Image
		answer["mounts"] = strings.Join(d.config.Sessions.Mounts, ":")
	}
	if !slices.Contains(d.config.LoginOn, d.node) {
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil {
			return nil, fmt.Errorf("ask the kernel which job the session is in: %w", err)
		}
		adopter := slurm.JobOfGroups(string(groups))
		switch declined, err := d.optOuts.covers(adopter, uid); {
		case err != nil:
			return nil, err
		case declined:
			return nil, fmt.Errorf("job %d, which this session belongs to, has no network (--network-pod=no), and sessions use the network of a job: enter it by srun --overlap --jobid=%[1]d --pty bash", adopter)
		}
		id, err := d.pods.choose(uid, adopter)
		if err != nil {
			return nil, err
		}
		return d.pods.enter(id, answer)
	}
	request := store.Request{UID: uid, User: user, Login: d.node, Nodes: []string{d.node}}
	session, err := d.sessions.begin(fmt.Sprint(uid), d.config.GroupOf(user))
	if err != nil {
		return nil, err
	}
	if _, err := d.attach(ctx, request, attachTimeout); err != nil {
		return nil, errors.Join(err, session.Close())
	}
	files, err := d.pods.enter(request.Allocation().ID(), answer)
	if err != nil {
		return nil, errors.Join(err, session.Close())
	}
	return append(files, session), nil
}

// removeSessions removes the pod of a user's sessions from this host and from etcd.
func (d *daemon) removeSessions(ctx context.Context, uid uint32, group string) error {
	a := siteconf.Allocation{UID: uid, Login: d.node, Group: group}
	switch dropped, err := d.drop(ctx, a.ID()); {
	case err != nil:
		return err
	case dropped != nil:
		a = *dropped
	}
	ctx, cancel := store.Limited(ctx)
	defer cancel()
	return d.store.Free(ctx, a)
}
