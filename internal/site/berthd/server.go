package berthd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/site/berthd/limits"
	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
)

// questionTimeout bounds how long a client may take to send its question.
const questionTimeout = 3 * time.Second

// listen makes the socket. All users may ask for the status and name their own jobs. Other
// changes are only for root.
func listen(run string) (*net.UnixListener, error) {
	path := filepath.Join(run, siteconf.Socket)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("remove berthd's former socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for questions: %w", err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		listener.Close()
		return nil, fmt.Errorf("let users ask for the status: %w", err)
	}
	return listener, nil
}

// server answers clients on the socket, within limits for each user.
type server struct {
	// do executes a question, fills in the answer, and returns the files to send with it.
	do  func(ctx context.Context, peer *unix.Ucred, question siteconf.Message, answer map[string]string) ([]*os.File, error)
	log *slog.Logger
	// clients counts the connections of users, and begun the connections of berth-session, by
	// the user who started it.
	clients *limits.Clients
	begun   limits.Starting
}

// serve answers clients until the context ends, and returns after the last answer.
func (s *server) serve(ctx context.Context, listener *net.UnixListener) error {
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	var said complaint
	for {
		conn, err := listener.AcceptUnix()
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("accept a question: %w", err)
		}
		if err != nil {
			// For example, too many files are open; others will be closed.
			if said.isNews(err, time.Now()) {
				s.log.Error("accept a question", "error", err)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(store.Retry):
			}
			continue
		}
		peer, err := peerOf(conn)
		if err != nil {
			conn.Close()
			continue
		}
		user, entered := s.clients.Enter(peer.Uid)
		if !entered {
			conn.Close()
			continue
		}
		starter := startedBy(peer)
		if starter != 0 && !s.begun.Enter(starter) {
			conn.Close()
			continue
		}
		all.Go(func() {
			defer s.clients.Leave(user)
			if starter != 0 {
				defer s.begun.Leave(starter)
			}
			defer conn.Close()
			s.answer(ctx, conn, peer)
		})
	}
}

// complaintPeriod is the shortest time between two equal complaints in the log.
const complaintPeriod = time.Minute

// complaint remembers the last error that was logged, so that users cannot fill the log.
type complaint struct {
	text string
	at   time.Time
}

// isNews reports whether the log does not have this error yet, or not recently.
func (c *complaint) isNews(err error, now time.Time) bool {
	if err.Error() == c.text && now.Sub(c.at) < complaintPeriod {
		return false
	}
	c.text, c.at = err.Error(), now
	return true
}

// startedBy returns the user who has started a peer that is root by its
// set-user-ID bit, as berth-session is, and 0 for every other peer.
func startedBy(peer *unix.Ucred) uint32 {
	if peer.Uid != 0 {
		return 0
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", peer.Pid))
	if err != nil {
		return 0 // it has gone, and so will its connection
	}
	for line := range strings.Lines(string(status)) {
		// Real, effective, saved and file system user.
		if fields := strings.Fields(line); len(fields) == 5 && fields[0] == "Uid:" {
			uid, _ := strconv.ParseUint(fields[1], 10, 32)
			return uint32(uid)
		}
	}
	return 0
}

func peerOf(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return peer, errors.Join(err, failed)
}

// answer reads one question, executes it, and sends the answer with its files.
func (s *server) answer(ctx context.Context, conn *net.UnixConn, peer *unix.Ucred) {
	if err := conn.SetDeadline(time.Now().Add(questionTimeout)); err != nil {
		return
	}
	question, extra, err := siteconf.ReadMessage(conn)
	linux.CloseAll(extra)
	answer := siteconf.Message{Verb: siteconf.VerbOK, Fields: map[string]string{}}
	var namespaces []*os.File
	if err == nil {
		namespaces, err = s.do(ctx, peer, question, answer.Fields)
	}
	// Users must not be able to fill the log. They can start berth-session, which asks as
	// root, at any time, and stop it before it has asked.
	level := slog.LevelWarn
	if peer.Uid != 0 || question.Verb == siteconf.VerbLogin || question.Verb == "" {
		level = slog.LevelDebug
	}
	if err != nil {
		answer = siteconf.Message{Verb: siteconf.VerbError, Fields: map[string]string{"reason": err.Error()}}
		if missing := (*noNetwork)(nil); errors.As(err, &missing) {
			answer.Fields["later"] = "yes"
			if missing.ill {
				answer.Fields["ill"] = "yes"
			}
		}
		s.log.Log(ctx, level, "refuse", "question", question.Verb, "uid", peer.Uid, "pid", peer.Pid, "reason", err)
	}
	var rights []byte
	if len(namespaces) > 0 {
		defer linux.CloseAll(namespaces)
		var fds []int
		for _, file := range namespaces {
			fds = append(fds, int(file.Fd()))
		}
		rights = unix.UnixRights(fds...)
	}
	if err := conn.SetDeadline(time.Now().Add(questionTimeout)); err != nil {
		return
	}
	if _, _, err := conn.WriteMsgUnix(answer.Encode(), rights, nil); err != nil {
		s.log.Log(ctx, level, "answer", "question", question.Verb, "pid", peer.Pid, "error", err)
	}
}
