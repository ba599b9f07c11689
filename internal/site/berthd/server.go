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

	"berth.dev/berth/internal/job/slurm"
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

// serve answers clients until the context ends, and returns after the last answer.
func (d *Daemon) serve(ctx context.Context, listener *net.UnixListener) error {
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	limits := clientLimits{subordinates: subordinates{path: "/etc/subuid", number: userNumber}}
	begun := startLimit{most: maxBegun}
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
				d.log.Error("accept a question", "error", err)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(retry):
			}
			continue
		}
		peer, err := peerOf(conn)
		if err != nil {
			conn.Close()
			continue
		}
		user, entered := limits.enter(peer.Uid)
		if !entered {
			conn.Close()
			continue
		}
		starter := startedBy(peer)
		if starter != 0 && !begun.enter(starter) {
			conn.Close()
			continue
		}
		all.Go(func() {
			defer limits.leave(user)
			if starter != 0 {
				defer begun.leave(starter)
			}
			defer conn.Close()
			d.answer(ctx, conn, peer)
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

func (d *Daemon) answer(ctx context.Context, conn *net.UnixConn, peer *unix.Ucred) {
	if err := conn.SetDeadline(time.Now().Add(questionTimeout)); err != nil {
		return
	}
	question, extra, err := siteconf.ReadMessage(conn)
	siteconf.CloseAll(extra)
	answer := siteconf.Message{Verb: siteconf.VerbOK, Fields: map[string]string{}}
	var namespaces []*os.File
	if err == nil {
		namespaces, err = d.do(ctx, peer, question, answer.Fields)
	}
	// Users must not be able to fill the log. They can start berth-session, which asks as
	// root, at any time, and stop it before it has asked.
	level := slog.LevelWarn
	if peer.Uid != 0 || question.Verb == siteconf.VerbLogin || question.Verb == "" {
		level = slog.LevelDebug
	}
	if err != nil {
		answer = siteconf.Message{Verb: siteconf.VerbError, Fields: map[string]string{"reason": err.Error()}}
		d.log.Log(ctx, level, "refuse", "question", question.Verb, "uid", peer.Uid, "pid", peer.Pid, "reason", err)
	}
	var rights []byte
	if len(namespaces) > 0 {
		defer siteconf.CloseAll(namespaces)
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
		d.log.Log(ctx, level, "answer", "question", question.Verb, "pid", peer.Pid, "error", err)
	}
}

// do executes a question, fills in the answer, and returns the files to send with it.
func (d *Daemon) do(ctx context.Context, peer *unix.Ucred, question siteconf.Message, answer map[string]string) ([]*os.File, error) {
	if question.Verb == siteconf.VerbStatus {
		answer["node"] = d.node
		if peer.Uid == 0 {
			answer["pods"] = d.Status()
		}
		return nil, nil
	}
	if question.Verb == siteconf.VerbName {
		job, err := number(question, "job")
		if err != nil {
			return nil, err
		}
		return nil, d.Name(ctx, peer.Uid, job, question.Fields["names"])
	}
	if question.Verb == siteconf.VerbServe {
		job, err := number(question, "job")
		if err != nil {
			return nil, err
		}
		return d.NameRun(ctx, peer.Uid, job, question.Fields["names"], answer)
	}
	if peer.Uid != 0 {
		return nil, fmt.Errorf("%s is for root", question.Verb)
	}
	switch question.Verb {
	case siteconf.VerbAttach:
		request, err := requestOf(question)
		if err != nil {
			return nil, err
		}
		switch declined, err := d.optOuts.covers(request.Job, request.UID); {
		case err != nil:
			return nil, err
		case declined:
			answer["declined"] = "yes"
			return nil, nil
		}
		pod, err := d.Attach(ctx, request)
		if err != nil {
			return nil, err
		}
		answer["address"] = pod.Address.String()
		return d.enter(request.empty(0).ID(), answer)
	case siteconf.VerbLogin:
		uid, err := number(question, "uid")
		if err != nil {
			return nil, err
		}
		if !d.sessions.starting.enter(uid) {
			return nil, fmt.Errorf("%d sessions of yours begin on %s at once: try again in some seconds", maxLogins, d.node)
		}
		defer d.sessions.starting.leave(uid)
		return d.Login(ctx, uid, question.Fields["user"], peer.Pid, answer)
	case siteconf.VerbDecline:
		job, err := number(question, "job")
		if err != nil {
			return nil, err
		}
		uid, err := number(question, "uid")
		if err != nil {
			return nil, err
		}
		return nil, d.optOuts.add(job, uid)
	case siteconf.VerbRelease:
		job, err := number(question, "job")
		if err != nil {
			return nil, err
		}
		if err := d.optOuts.forget(job); err != nil {
			return nil, err
		}
		return nil, d.Release(ctx, siteconf.Allocation{Job: job}.ID())
	}
	return nil, fmt.Errorf("unknown question %s: install the same version of berthd and of the plugin", question.Verb)
}

// enter opens the network namespace and the PID namespace of a pod, in this order, and adds
// the path of the pod's resolv.conf to the answer.
func (d *Daemon) enter(id string, answer map[string]string) ([]*os.File, error) {
	if d.config.DNS.Program != "" {
		answer["resolver"] = d.resolver(id)
	}
	var files []*os.File
	for _, path := range []string{d.network(id), d.processes(id)} {
		file, err := os.Open(path)
		if err != nil {
			siteconf.CloseAll(files)
			return nil, fmt.Errorf("open namespace of %s: %w", id, err)
		}
		files = append(files, file)
	}
	return files, nil
}

func requestOf(question siteconf.Message) (Request, error) {
	job, err := number(question, "job")
	if err != nil {
		return Request{}, err
	}
	uid, err := number(question, "uid")
	if err != nil {
		return Request{}, err
	}
	r := Request{Job: job, UID: uid, User: question.Fields["user"], Name: question.Fields["name"]}
	if list := question.Fields["nodes"]; list != "" {
		if r.Nodes, err = slurm.ExpandHosts(list); err != nil {
			return Request{}, fmt.Errorf("read nodes of job %d: %w", job, err)
		}
	}
	return r, nil
}

func number(question siteconf.Message, field string) (uint32, error) {
	n, err := strconv.ParseUint(question.Fields[field], 10, 32)
	if err != nil {
		return 0, fmt.Errorf("read field %s of %s: %w", field, question.Verb, err)
	}
	return uint32(n), nil
}

// Status describes the pods of this node in one line for a person.
func (d *Daemon) Status() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var lines []string
	for id, local := range d.local {
		pod, _ := local.here(d.node).On(d.node)
		line := fmt.Sprintf("%s uid %d %s", id, local.UID, pod.Address)
		if second := d.config.IPv6.Second(pod.Address); second.IsValid() {
			line += " " + second.String()
		}
		if gateway := d.gateways.of(pod.Address); gateway.IsValid() {
			line += fmt.Sprintf(" gateway %s", gateway)
		}
		if local.problem != nil {
			line += fmt.Sprintf(" (%s)", local.problem)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}
