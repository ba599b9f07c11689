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

// Settings are variables of the environment.
const (
	// EnvJob names the job that is meant where a command names none.
	EnvJob = "BERTH_JOB"
	// EnvIdle sets the time after which an unused tunnel closes.
	EnvIdle = "BERTH_TUNNEL_IDLE"
	// EnvRemotePath is berth's own file on the nodes, where it is not what it
	// is here.
	EnvRemotePath = "BERTH_REMOTE_PATH"
)

// defaultIdle is long enough for somebody who thinks between two commands.
const defaultIdle = 10 * time.Minute

// Place is one login host, as one user sees it.
type Place struct {
	getenv func(string) string
	ask    slurm.Ask
	// base is the parent of the tunnels' directories, in memory.
	base string
	// program is berth's own file on the nodes.
	program string
	idle    time.Duration
}

// NewPlace returns that of this process.
func NewPlace(getenv func(string) string) (*Place, error) {
	p := &Place{getenv: getenv, ask: slurm.AskPatiently, base: rundir.Memory(getenv), idle: defaultIdle}
	if p.base == "" {
		return nil, problem(codeUnavailable, "find a place in memory for sockets: neither XDG_RUNTIME_DIR nor %s can be written", "/dev/shm")
	}
	if text := getenv(EnvIdle); text != "" {
		idle, err := time.ParseDuration(text)
		if err != nil || idle <= 0 {
			return nil, problem(codeUsage, "read %s=%s: it is a time such as 10m", EnvIdle, text)
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

// Lasting is the same place with tunnels that stay open until their cluster has
// ended.
func (p *Place) Lasting() *Place {
	lasting := *p
	lasting.idle = math.MaxInt64
	return &lasting
}

// Files in the directory of a tunnel.
const (
	socketFile     = "socket"
	kubeconfigFile = "kubeconfig"
	cacheDir       = "cache"
	binDir         = "bin"
)

// dirName combines the target and the protocol's version: versions of berth with
// another protocol use separate tunnels.
func dirName(target Target) string {
	name := fmt.Sprintf("tunnel%d-%s", tunnel.Protocol, target.Job)
	if target.Step != "" {
		name += "." + target.Step
	}
	return name
}

// open are the tunnels that are open, by target.
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

// dial connects to the process that keeps a tunnel, which is this user's: what it
// answers names programs that are started.
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

// What a command asks the process that keeps a tunnel, a line of JSON each way.
type question struct {
	// Do is doHold, doCheck, doCheckJob or doJobs.
	Do string
	// Fresh asks for the jobs as they are now.
	Fresh bool `json:",omitempty"`
	// Without are jobs that were found to have no cluster.
	Without []string `json:",omitempty"`
}

const (
	// doHold keeps the tunnel open as long as the connection is. A reply
	// comes when the cluster can be reached, and another when it no longer can.
	doHold = "hold"
	// doCheck, on the connection of doHold, checks the tunnel. The answer is
	// empty if the tunnel is open, and otherwise has the reason.
	doCheck = "check"
	// doCheckJob asks whether the job still runs, too.
	doCheckJob = "check job"
	// doJobs asks for the user's jobs.
	doJobs = "jobs"
)

type reply struct {
	Problem *Problem `json:",omitempty"`
	// For doHold.
	Kubeconfig string `json:",omitempty"`
	Cache      string `json:",omitempty"`
	Bin        string `json:",omitempty"`
	Node       string `json:",omitempty"`
	Cluster    string `json:",omitempty"`
	Version    string `json:",omitempty"`
	// For doJobs; Without lists the jobs without a cluster.
	Jobs    []slurm.Queued `json:",omitempty"`
	Without []string       `json:",omitempty"`
}

// exchange asks one question.
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
