package berthd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/site/siteconf"
)

// sessionsPeriod is the time between two checks whether a user's last session has ended.
const sessionsPeriod = time.Second

// sessionFile returns the file that each session of a user here locks, shared. The
// kernel releases the lock when the session's process ends, in whatever way, and keeps it when
// the daemon ends.
func (d *Daemon) sessionFile(uid string) string { return filepath.Join(d.config.Run, "sessions", uid) }

// Login returns the namespaces of the pod that a user's session enters. On a login host that is
// the user's pod for sessions, which the first session makes. Elsewhere it is the pod of a job:
// the job that adopted the session's process pid, or the user's newest job. On a login host the
// last file is the lock that the session must hold. The answer also describes the files that
// the session sees, because berth-session reads no configuration.
func (d *Daemon) Login(ctx context.Context, uid uint32, user string, pid int32, answer map[string]string) ([]*os.File, error) {
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
		switch declined, err := d.declined(adopter, uid); {
		case err != nil:
			return nil, err
		case declined:
			return nil, fmt.Errorf("job %d, which this session belongs to, has no network of its own (--network-pod=no), and sessions are in that of a job: enter it by srun --overlap --jobid=%[1]d --pty bash", adopter)
		}
		id, err := d.choose(uid, adopter)
		if err != nil {
			return nil, err
		}
		return d.enter(id, answer)
	}
	request := Request{UID: uid, User: user, Login: d.node, Nodes: []string{d.node}}
	session, err := d.beginSession(fmt.Sprint(uid), d.config.GroupOf(user))
	if err != nil {
		return nil, err
	}
	if _, err := d.Attach(ctx, request); err != nil {
		return nil, errors.Join(err, session.Close())
	}
	files, err := d.enter(request.empty(0).ID(), answer)
	if err != nil {
		return nil, errors.Join(err, session.Close())
	}
	return append(files, session), nil
}

// beginSession returns the lock that the session must hold.
func (d *Daemon) beginSession(uid, group string) (*os.File, error) {
	defer d.holdSessions(uid)()
	session, err := d.lockSession(uid, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	if err := d.keepGroup(session, group); err != nil {
		return nil, errors.Join(fmt.Errorf("keep with whom the session shares a network: %w", err), session.Close())
	}
	return session, nil
}

// holdSessions locks the sessions of one user and returns the function that unlocks them.
// There is a mutex for each user, because ending sessions waits for etcd.
func (d *Daemon) holdSessions(uid string) func() {
	held, _ := d.sessions.LoadOrStore(uid, &sync.Mutex{})
	mutex := held.(*sync.Mutex)
	mutex.Lock()
	return mutex.Unlock
}

// keepGroup writes the group of the session's user into the session file. endUnlessHeld needs
// it to find the addresses in etcd. It writes in place because the lock belongs to the file,
// and truncates last because the disk may be full. It opens the file again because the user
// gets the session's own descriptor, which is only for reading.
func (d *Daemon) keepGroup(session *os.File, group string) error {
	there := make([]byte, len(group)+1)
	n, err := session.ReadAt(there, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if string(there[:n]) == group {
		return nil
	}
	file, err := os.OpenFile(session.Name(), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteAt([]byte(group), 0)
	if err == nil {
		err = file.Truncate(int64(len(group)))
	}
	return errors.Join(err, file.Close())
}

// choose selects a job of a user on this node: the job that adopted the session, since the
// session ends with it, or the newest job if none did.
func (d *Daemon) choose(uid, adopter uint32) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var chosen *localPod
	for _, local := range d.local {
		if local.UID != uid || !local.ready || local.Login != "" || adopter != 0 && local.Job != adopter {
			continue
		}
		if chosen == nil || local.After > chosen.After {
			chosen = local
		}
	}
	switch {
	case chosen != nil:
		return chosen.ID(), nil
	case adopter != 0:
		return "", fmt.Errorf("job %d, which this session belongs to, has no network yet, or not any more: try again, or enter it by srun --overlap --jobid=%[1]d --pty bash", adopter)
	}
	return "", fmt.Errorf("you have no job on %s", d.node)
}

// lockSession locks a user's session file without waiting. The lock lasts until the file is
// closed. The caller holds the sessions of this user.
func (d *Daemon) lockSession(uid string, how int) (*os.File, error) {
	file, err := os.OpenFile(d.sessionFile(uid), os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("count the session: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("count the session: %w", errors.Join(err, file.Close()))
	}
	return file, nil
}

// endSessions removes the pods of users whose last session has ended.
func (d *Daemon) endSessions(ctx context.Context) error {
	ticker := time.NewTicker(sessionsPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		entries, err := os.ReadDir(d.sessionFile(""))
		if err != nil {
			return fmt.Errorf("list sessions: %w", err)
		}
		for _, entry := range entries {
			if err := d.endUnlessHeld(ctx, entry.Name()); err != nil {
				d.log.Error("remove the pod of sessions that have ended", "uid", entry.Name(), "error", err)
			}
		}
	}
}

// endUnlessHeld removes a user's pod if no session holds the lock. It has the exclusive lock
// meanwhile, so that a new session waits until the pod is gone. It removes the file last, so
// that a removal that failed is tried again.
func (d *Daemon) endUnlessHeld(ctx context.Context, uid string) error {
	defer d.holdSessions(uid)()
	session, err := d.lockSession(uid, unix.LOCK_EX)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	}
	if err != nil {
		return err
	}
	defer session.Close()
	number, err := strconv.ParseUint(uid, 10, 32)
	if err != nil {
		return fmt.Errorf("read whose sessions these are: %w", err)
	}
	a := siteconf.Allocation{UID: uint32(number), Login: d.node}
	group, err := io.ReadAll(session)
	if err != nil {
		return fmt.Errorf("read with whom the sessions share a network: %w", err)
	}
	a.Group = string(group)
	switch dropped, err := d.drop(ctx, a.ID()); {
	case err != nil:
		return err
	case dropped != nil:
		a = *dropped
	}
	ctx, cancel := context.WithTimeout(ctx, etcdLimit)
	defer cancel()
	if err := d.store.Free(ctx, a); err != nil {
		return err
	}
	return os.Remove(d.sessionFile(uid))
}
