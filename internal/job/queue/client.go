package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/job/slurm"
)

// Job describes what is submitted for an object.
type Job struct {
	// Options holds options of sbatch. The caller has checked them.
	Options []string
	// Comment is the job's comment. The client puts the UID before it.
	Comment string
	// Script is the batch script, and Args holds its arguments. UserScript is written to
	// the same folder, as UserScriptName.
	Script, UserScript []byte
	Args               []string
	// Dir is the working directory of sbatch.
	Dir string
}

// Unavailable wraps every error caused by a Slurm that does not answer. Slurm may have
// carried out the request. The caller may repeat the request later.
type Unavailable struct{ Err error }

func (u *Unavailable) Error() string { return "Slurm is unavailable: " + u.Err.Error() }
func (u *Unavailable) Unwrap() error { return u.Err }

// Refused reports that Slurm rejected a request.
type Refused struct {
	// Message is Slurm's own message.
	Message string
	// Full is true if Slurm may accept the job later: the job exceeds a limit on the
	// number of jobs in the queue, or its partition is not available now.
	Full bool
}

func (r *Refused) Error() string { return r.Message }

// Options configures a Client.
type Options struct {
	// State is the folder that holds the folders of objects. It must be on a file system
	// that compute nodes share.
	State string
	// Interval is the least time between two calls of squeue. Timeout limits one call of
	// sbatch.
	Interval, Timeout time.Duration
	// PerMinute limits the submissions per minute. Zero means no limit.
	PerMinute int
	// Env is the environment of sbatch, which jobs inherit.
	Env []string
	// Ask runs each command of Slurm except sbatch.
	Ask slurm.Ask
	Log *slog.Logger
}

// Default returns options that keep the folders of objects in state.
func Default(state string, log *slog.Logger) Options {
	env := JobEnv(os.Environ())
	return Options{
		State: state, Interval: 5 * time.Second, Timeout: 30 * time.Second, PerMinute: 120,
		Env: env, Ask: slurm.AskLongWith(env), Log: log,
	}
}

// inherited lists the variables that jobs inherit. A name that ends in "*" is a prefix. Other
// variables, such as KUBECONFIG or a token of the controller, would be visible to everybody
// who can create an object.
var inherited = []string{
	"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "LANGUAGE", "LC_*", "TZ", "MANPATH", "INFOPATH", "LD_LIBRARY_PATH",
	"BASH_ENV", "ENV", "BASH_FUNC_*", "MODULE*", "LMOD_*", "LOADEDMODULES", "_LMFILES_", "__LMOD_*", "SLURM_CONF", "SLURM_CONF_SERVER", "KRB5CCNAME",
}

// JobEnv returns the entries of an environment that jobs inherit.
func JobEnv(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return !slices.ContainsFunc(inherited, func(pattern string) bool {
			prefix, isPrefix := strings.CutSuffix(pattern, "*")
			return name == pattern || isPrefix && strings.HasPrefix(name, prefix)
		})
	})
}

// Client submits jobs and reads their states. Its methods may be called concurrently.
type Client struct {
	options Options

	// submitting is a lock of one call of sbatch, and asking of one call of squeue.
	submitting, asking chan struct{}
	// lastSubmit is the time of the last call of sbatch. submitting guards it.
	lastSubmit time.Time
	// last is the result of the last call of squeue. asking guards it.
	last *snapshot

	mu sync.Mutex
	// known holds the submitted jobs and the jobs that States was asked for, by UID.
	known map[string]*known
	// noAccountingUntil is the time before which sacct is not called.
	noAccountingUntil time.Time
	// removed is the time of the last removal of forgotten folders.
	removed time.Time
}

// New returns a client, and creates the folder options.State.
func New(options Options) (*Client, error) {
	if err := os.MkdirAll(options.State, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder for jobs' records: %w", err)
	}
	return &Client{
		options: options, submitting: make(chan struct{}, 1), asking: make(chan struct{}, 1),
		known: map[string]*known{},
	}, nil
}

// Release lets a held job start. It returns nil if the job has ended, an *Unavailable if
// Slurm does not answer, and otherwise a *Refused.
func (c *Client) Release(ctx context.Context, id string) error {
	return c.change(ctx, "scontrol", "release", id)
}

// Cancel cancels a job. It returns nil if the job has ended, even if another job now has its
// number. It returns the same errors as Release.
func (c *Client) Cancel(ctx context.Context, id string) error {
	c.mu.Lock()
	object := ""
	for uid, k := range c.known {
		if k.id == id {
			object = uid
		}
	}
	c.mu.Unlock()
	if object != "" {
		snapshot, err := c.snapshot(ctx, time.Now().Add(-c.options.Interval))
		if err != nil {
			return err
		}
		var parts []listed
		for _, job := range snapshot.jobs {
			if job.root == id {
				parts = append(parts, job)
			}
		}
		if isOther(object, parts) {
			return nil
		}
	}
	return c.change(ctx, "scancel", id)
}

// Submitted returns the user's jobs that Slurm lists and that a client has submitted, possibly in
// another process. An object may have several. A State has only what squeue reports.
func (c *Client) Submitted(ctx context.Context) ([]State, error) {
	snapshot, err := c.snapshot(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	var jobs []State
	for _, job := range snapshot.jobs {
		uid := job.object()
		if script, ok := strings.CutPrefix(job.command, c.options.State+"/"); uid == "" && ok {
			uid, _, _ = strings.Cut(script, "/") // a plugin of the site has changed the comment
		}
		if uid != "" {
			jobs = append(jobs, State{UID: uid, ID: job.root, Name: job.name, State: job.state, Reason: job.reason, Nodes: job.nodes, Held: job.isHeld})
		}
	}
	return jobs, nil
}

// alreadyEnded matches the messages for jobs that have ended: ESLURM_ALREADY_DONE and
// ESLURM_INVALID_JOB_ID (slurm_errno.c).
var alreadyEnded = []string{"already finished", "already completing or completed", "Invalid job id"}

// change runs a command that changes a job.
func (c *Client) change(ctx context.Context, command ...string) error {
	_, err := c.options.Ask(ctx, command...)
	switch {
	case err == nil || matches(err.Error(), alreadyEnded):
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded) || matches(err.Error(), unavailable):
		return &Unavailable{shorten(err, command)}
	}
	return &Refused{Message: shorten(err, command).Error()}
}

// shorten returns the error of a command without the command's arguments.
func shorten(err error, command []string) error {
	return errors.New(strings.Replace(err.Error(), strings.Join(command, " "), command[0], 1))
}

// unavailable matches the messages of commands when slurmctld or munge does not answer
// (slurm_errno.c).
var unavailable = []string{
	"Unable to contact slurm controller", "Socket timed out", "Zero Bytes were transmitted", "Connection refused", "Connection timed out",
	"Connection reset", "No route to host", "Network is unreachable", "Transport endpoint", "standby mode", "authentication error", "munge", "Munge",
	"Could not establish a configuration source", "temporarily unable", "temporarily unavailable", "Unexpected message received",
	"Communication connection failure", "Communication shutdown failure", "Message receive failure", "Message send failure",
	"Rate limit exceeded", "Unspecified error", "Incompatible versions",
}

// full matches the messages for jobs that Slurm may accept later. Slurm first names a limit,
// such as QOSMaxSubmitJobPerUserLimit. The sentence after it, about a policy, is the same for
// every limit.
var full = []string{
	"SubmitJob", "MaxJobCount", "Requested partition configuration not available now",
	"Required node not available (down, drained or reserved)", "Requested nodes are busy",
	"Required partition not available (inactive or drain)",
}

// matches reports whether a text contains one of the parts.
func matches(text string, parts []string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
}
