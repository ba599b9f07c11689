package login

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/linux"
)

const (
	// openLimit bounds the time to open a tunnel.
	openLimit = time.Minute
	// claimPoll is the interval of checks for a tunnel that another command has
	// begun to open.
	claimPoll = 10 * time.Millisecond
)

// Target identifies the cluster for a command.
type Target struct {
	// Job is Slurm's job ID. Step is the step's ID, if the job has several
	// clusters.
	Job, Step string
}

// String returns the user's name for the target.
func (t Target) String() string {
	if t.Step == "" {
		return t.Job
	}
	return t.Job + "." + t.Step
}

// IsLocal reports whether the cluster runs on this machine, outside Slurm.
func (t Target) IsLocal() bool { return t.Job == persistent.Local }

// Session is the use of a cluster by one command, usually through a tunnel. It
// stays open until Close.
type Session struct {
	Target Target
	// Kubeconfig is a file for this user's programs on this host to reach the
	// cluster. Cache is a directory for their caches. Bin is a directory with
	// kubectl, helm and berth.
	Kubeconfig, Cache, Bin string
	// Node is the node of the cluster's API server, Cluster the name of the run,
	// and Version its version of berth.
	Node, Cluster, Version string

	// nodes is the number of nodes and since the start of the cluster. They are set
	// only if no tunnel is needed.
	nodes int
	since time.Time

	conn    net.Conn      // nil if no tunnel is needed
	checked chan struct{} // receives a value for each successful check
	lost    chan struct{} // closed when the tunnel is lost
	why     error         // valid once lost is closed
}

// Connect returns a session with the target's cluster. It uses the open tunnel, or
// opens one.
func (p *Place) Connect(ctx context.Context, target Target) (*Session, error) {
	if cluster, ok := p.local(target.Job); ok && target.Step == "" {
		return p.stay(ctx, target, cluster)
	}
	if target.Job == persistent.Local {
		return nil, problem(codeUnavailable, "no cluster of yours is up on this machine; 'berth up' starts one")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, openLimit, problem(codeUnavailable, "reach the cluster of job %s: nothing answers within %s", target, openLimit))
	defer cancel()
	var elsewhere []string
	for {
		conn, err := p.dial(ctx, target)
		if err == nil {
			session, err := greet(ctx, conn, target)
			var lost *Problem
			switch {
			case errors.As(err, &lost) && len(lost.Elsewhere) > 0:
				elsewhere = lost.Elsewhere
				pause(ctx) // the process is about to end
			case err == nil || !isGone(err):
				return session, err
			default:
				pause(ctx)
			}
		} else if err := p.start(ctx, target, elsewhere); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// isGone reports whether the error means that the tunnel's process has ended. It
// may end while a command connects.
func isGone(err error) bool {
	var said *Problem
	return !errors.As(err, &said) && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE))
}

// greet requests the tunnel on a new connection and returns the session that uses it. On
// an error it closes the connection.
func greet(ctx context.Context, conn net.Conn, target Target) (*Session, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	answers, answer, err := exchange(conn, question{Do: doHold})
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	s := &Session{
		Target: target, Kubeconfig: answer.Kubeconfig, Cache: answer.Cache, Bin: answer.Bin,
		Node: answer.Node, Cluster: answer.Cluster, Version: answer.Version,
		conn: conn, checked: make(chan struct{}, 1), lost: make(chan struct{}),
	}
	go s.attend(answers)
	return s, nil
}

// attend reads replies until the tunnel ends.
func (s *Session) attend(answers *json.Decoder) {
	defer close(s.lost)
	for {
		var said reply
		switch err := answers.Decode(&said); {
		case err != nil:
			s.why = problem(codeUnavailable, "the tunnel into job %s was lost: its process on this host was killed", s.Target)
			return
		case said.Problem != nil:
			s.why = said.Problem
			return
		}
		s.checked <- struct{}{}
	}
}

// Check returns the reason why the tunnel was lost, or nil if it is open. It is not
// safe for concurrent use.
func (s *Session) Check() error { return s.check(doCheck) }

// CheckJob works like Check, but also queries Slurm: the tunnel exists for a moment
// longer than a job's pods. It returns an error if the job does not run.
func (s *Session) CheckJob() error { return s.check(doCheckJob) }

func (s *Session) check(how string) error {
	if s.conn == nil {
		select {
		case <-s.lost:
			return s.why
		default:
			return nil
		}
	}
	if json.NewEncoder(s.conn).Encode(question{Do: how}) == nil {
		select {
		case <-s.checked:
			return nil
		case <-s.lost:
			return s.why
		}
	}
	<-s.lost
	return s.why
}

// Lost returns a channel that is closed when the tunnel is lost. Check returns the
// reason.
func (s *Session) Lost() <-chan struct{} { return s.lost }

// Close ends the session. A tunnel stays open for other commands.
func (s *Session) Close() {
	if s.conn != nil {
		s.conn.Close()
	}
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(claimPoll):
	}
}

// start starts the process that keeps a tunnel. It returns when a command can
// connect to it, or to the process of a faster command. The process tries the given
// nodes first.
func (p *Place) start(ctx context.Context, target Target, nodes []string) error {
	if _, err := exec.LookPath("srun"); err != nil {
		return problem(codeUnavailable, "reach into job %s: %v; load Slurm's module, or add the directory of its commands to PATH", target, err)
	}
	config, err := json.Marshal(tunnelServerConfig{Target: target, Program: p.program, Idle: p.idle, Nodes: nodes})
	if err != nil {
		return err
	}
	input, err := linux.MemoryFile("config", config)
	if err != nil {
		return err
	}
	defer input.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	defer reader.Close()
	// The process gets its own session, so that Ctrl-C and the end of a terminal
	// end only the command. Other commands continue to use the tunnel.
	process := exec.Command("/proc/self/exe", TunnelServerArg)
	process.Args[0] = "berth"
	process.Dir = "/"
	process.Stdin, process.Stdout = input, writer
	process.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = process.Start()
	writer.Close()
	if err != nil {
		return fmt.Errorf("start the process that keeps the tunnel: %w", err)
	}
	go process.Wait() //nolint:errcheck // it reports on its pipe, and outlives this command
	said, _ := bufio.NewReader(reader).ReadString('\n')
	switch said = strings.TrimSpace(said); said {
	case saidListening:
		return nil
	case saidTaken:
		pause(ctx)
		return nil
	case "":
		return problem(codeUnavailable, "open a tunnel into job %s: its process was killed", target)
	}
	return problem(codeUnavailable, "open a tunnel into job %s: %s", target, said)
}
