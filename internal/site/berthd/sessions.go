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

// sessionsPeriod is how often it is looked whether a user's last session has
// ended.
const sessionsPeriod = time.Second

// sessionFile is locked, shared, by each session of a user here. The kernel lets
// go of the lock when a session's process ends, however it does, and keeps it
// when the daemon does.
func (d *Daemon) sessionFile(uid string) string { return filepath.Join(d.config.Run, "sessions", uid) }

// Login is the pod into which a session of a user goes: on a login host one of
// its own, made now if this is the first session, elsewhere that of a job here: the one
// that has adopted the session's process pid, or the user's newest. Behind the namespaces comes
// what the session has to hold. The answer says which files it sees, too: berth-session has no
// configuration.
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

// beginSession returns what the session has to hold.
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

// holdSessions of one user: the end of another's, which waits for etcd, is not in the way. It
// returns what lets go of them.
func (d *Daemon) holdSessions(uid string) func() {
	held, _ := d.sessions.LoadOrStore(uid, &sync.Mutex{})
	mutex := held.(*sync.Mutex)
	mutex.Lock()
	return mutex.Unlock
}

// keepGroup writes where the addresses of sessions are in etcd, for the end of the
// last one. In place, as the lock is the file's, and what is there goes only when the
// new has come: the disk may be full. The session's own descriptor is for reading, as
// its user has it.
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

// choose a job of a user's on this node: the one that has adopted the session, as it ends with that, or where none has
// the one that came last.
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

// lockSession does not wait for a lock, which the caller keeps by the file. The
// caller holds the sessions of this user.
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

// endUnlessHeld has the lock alone while it removes the pod, so that a session
// which begins now waits for it to be gone. The file goes last: what failed is
// tried again.
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
