package login

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"berth.dev/berth/internal/access/tunnel"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/job/slurm"
)

// Environment variables.
const (
	// EnvJob names the job for commands without a job argument.
	EnvJob = "BERTH_JOB"
	// envIdle sets the time after which an unused tunnel closes.
	envIdle = "BERTH_TUNNEL_IDLE"
	// EnvRemotePath is the path of berth on the nodes, if it differs from the path
	// on this host.
	EnvRemotePath = "BERTH_REMOTE_PATH"
)

// defaultIdle is long enough for a user who thinks between two commands.
const defaultIdle = 10 * time.Minute

// Place is a login host from one user's point of view.
type Place struct {
	getenv func(string) string
	ask    slurm.Ask
	// base is the parent of the tunnels' directories, on a file system in memory.
	base string
	// program is the path of berth on the nodes.
	program string
	// idle is the time after which an unused tunnel closes.
	idle time.Duration
}

// NewPlace returns the place of this process.
func NewPlace(getenv func(string) string) (*Place, error) {
	p := &Place{getenv: getenv, ask: slurm.AskLong, base: rundir.Memory(getenv), idle: defaultIdle}
	if p.base == "" {
		return nil, problem(codeUnavailable, "find a place in memory for sockets: neither XDG_RUNTIME_DIR nor %s can be written", "/dev/shm")
	}
	if text := getenv(envIdle); text != "" {
		idle, err := time.ParseDuration(text)
		if err != nil || idle <= 0 {
			return nil, problem(codeUsage, "read %s=%s: it is a time such as 10m", envIdle, text)
		}
		p.idle = idle
	}
	if p.program = getenv(EnvRemotePath); p.program == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find berth's own file: %w", err)
		}
		p.program = self
	}
	return p, nil
}

// Lasting returns a copy of the place whose tunnels stay open until their cluster
// ends.
func (p *Place) Lasting() *Place {
	lasting := *p
	lasting.idle = math.MaxInt64
	return &lasting
}

// The files in the directory of a tunnel.
const (
	socketFile     = "socket"
	kubeconfigFile = "kubeconfig"
	cacheDir       = "cache"
	binDir         = "bin"
)

// dirName combines the target and the version of the protocol. So versions of berth
// with different protocols use separate tunnels.
func dirName(target Target) string {
	name := fmt.Sprintf("tunnel%d-%s", tunnel.Protocol, target.Job)
	if target.Step != "" {
		name += "." + target.Step
	}
	return name
}

// open returns the targets of all open tunnels.
func (p *Place) open() []Target {
	var targets []Target
	prefix := fmt.Sprintf("tunnel%d-", tunnel.Protocol)
	for _, path := range rundir.Live(p.base) {
		if name, ok := strings.CutPrefix(filepath.Base(path), prefix); ok {
			job, step, _ := strings.Cut(name, ".")
			targets = append(targets, Target{Job: job, Step: step})
		}
	}
	return targets
}

// dial connects to the process that keeps a tunnel. The process must belong to this
// user, because its replies name programs to start.
func (p *Place) dial(ctx context.Context, target Target) (net.Conn, error) {
	err := os.ErrNotExist
	for _, home := range rundir.Owned(p.base) {
		var conn net.Conn
		if conn, err = new(net.Dialer).DialContext(ctx, "unix", filepath.Join(home, dirName(target), socketFile)); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// question is a request of a command to the process that keeps a tunnel. Both sides
// send lines of JSON.
type question struct {
	// Do is doHold, doCheck, doCheckJob or doJobs.
	Do string
	// Fresh requests the current jobs instead of cached ones.
	Fresh bool `json:",omitempty"`
	// Without lists jobs that turned out to have no cluster.
	Without []string `json:",omitempty"`
}

const (
	// doHold keeps the tunnel open while the connection is open. A reply arrives
	// when the cluster can be reached, and another when it no longer can.
	doHold = "hold"
	// doCheck, on the connection of doHold, checks the tunnel. The reply is empty
	// if the tunnel is open, and otherwise has the reason.
	doCheck = "check"
	// doCheckJob also checks that the job is still running.
	doCheckJob = "check job"
	// doJobs requests the user's jobs.
	doJobs = "jobs"
)

// reply is the answer to a question.
type reply struct {
	Problem *Problem `json:",omitempty"`
	// Replies to doHold.
	Kubeconfig string `json:",omitempty"`
	Cache      string `json:",omitempty"`
	Bin        string `json:",omitempty"`
	Node       string `json:",omitempty"`
	Cluster    string `json:",omitempty"`
	Version    string `json:",omitempty"`
	// Replies to doJobs. Without lists the jobs without a cluster.
	Jobs    []slurm.Queued `json:",omitempty"`
	Without []string       `json:",omitempty"`
}

// exchange sends one request. It returns the reply, and the decoder for later replies on
// the connection. A problem in the reply is returned as the error.
func exchange(conn net.Conn, q question) (*json.Decoder, reply, error) {
	var answer reply
	if err := json.NewEncoder(conn).Encode(q); err != nil {
		return nil, reply{}, err
	}
	answers := json.NewDecoder(conn)
	if err := answers.Decode(&answer); err != nil {
		return nil, reply{}, err
	}
	if answer.Problem != nil {
		return nil, reply{}, answer.Problem
	}
	return answers, answer, nil
}
