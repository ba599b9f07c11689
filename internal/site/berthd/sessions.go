package berthd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/site/berthd/limits"
)

// sessionsPeriod is the time between two checks whether a user's last session has ended.
const sessionsPeriod = time.Second

// sessions tracks which users have sessions on this login host.
type sessions struct {
	// dir has a file for each user, by number. Each session of the user locks it, shared. The
	// kernel releases the lock when the session's process ends, in whatever way, and keeps it
	// when the daemon ends.
	dir string
	log *slog.Logger
	// starting counts the sessions that are starting.
	starting limits.Starting

	// users has a mutex for each user, by number. It keeps the end of a user's last session
	// and the beginning of the next one apart.
	users sync.Map
}

func (s *sessions) file(uid string) string { return filepath.Join(s.dir, uid) }

// begin returns the lock that the session must hold.
func (s *sessions) begin(uid, group string) (*os.File, error) {
	defer s.hold(uid)()
	session, err := s.lock(uid, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	if err := s.keepGroup(session, group); err != nil {
		return nil, errors.Join(fmt.Errorf("record which users share the session's network: %w", err), session.Close())
	}
	return session, nil
}

// hold locks the sessions of one user and returns the function that unlocks them.
// There is a mutex for each user, because ending sessions waits for etcd.
func (s *sessions) hold(uid string) func() {
	held, _ := s.users.LoadOrStore(uid, &sync.Mutex{})
	mutex := held.(*sync.Mutex)
	mutex.Lock()
	return mutex.Unlock
}

// keepGroup writes the group of the session's user into the session file. endUnlessHeld needs
// it to find the addresses in etcd. It writes in place because the lock belongs to the file,
// and truncates last because the disk may be full. It opens the file again because the user
// gets the session's own descriptor, which is only for reading.
func (s *sessions) keepGroup(session *os.File, group string) error {
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

// lock locks a user's session file without waiting. The lock lasts until the file is
// closed. The caller holds the sessions of this user.
func (s *sessions) lock(uid string, how int) (*os.File, error) {
	file, err := os.OpenFile(s.file(uid), os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("count the session: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("count the session: %w", errors.Join(err, file.Close()))
	}
	return file, nil
}

// removeEnded calls remove for each user whose last session has ended, until the context ends.
func (s *sessions) removeEnded(ctx context.Context, remove func(ctx context.Context, uid uint32, group string) error) error {
	ticker := time.NewTicker(sessionsPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		entries, err := os.ReadDir(s.file(""))
		if err != nil {
			return fmt.Errorf("list sessions: %w", err)
		}
		for _, entry := range entries {
			if err := s.endUnlessHeld(ctx, entry.Name(), remove); err != nil {
				s.log.Error("remove the pod of sessions that have ended", "uid", entry.Name(), "error", err)
			}
		}
	}
}

// endUnlessHeld calls remove if no session of the user holds the lock. It has the exclusive lock
// meanwhile, so that a new session waits until the pod is gone. It removes the file last, so
// that a removal that failed is tried again.
func (s *sessions) endUnlessHeld(ctx context.Context, uid string, remove func(ctx context.Context, uid uint32, group string) error) error {
	defer s.hold(uid)()
	session, err := s.lock(uid, unix.LOCK_EX)
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
	group, err := io.ReadAll(session)
	if err != nil {
		return fmt.Errorf("read which users share the sessions' network: %w", err)
	}
	if err := remove(ctx, uint32(number), string(group)); err != nil {
		return err
	}
	return os.Remove(s.file(uid))
}
