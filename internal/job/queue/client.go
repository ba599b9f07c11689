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
	// UID identifies the object. It consists of letters, digits, ".", "_" and "-".
	UID string
	// Options holds words for sbatch, checked already.
	Options []string
	// Comment is the job's comment. The client adds the UID to it.
	Comment string
	// Script is the batch script, and Args are its arguments. UserScript is written beside
	// it, under the name UserScriptName.
	Script, UserScript []byte
	Args               []string
	// Dir is the working directory of sbatch.
	Dir string
}

// Unavailable wraps every error caused by a Slurm that does not answer now. Whether Slurm
// has done what it was asked to do is unknown. The caller may ask again later.
type Unavailable struct{ Err error }

func (u *Unavailable) Error() string { return "Slurm is unavailable: " + u.Err.Error() }
func (u *Unavailable) Unwrap() error { return u.Err }

// Refused reports that Slurm rejected a request.
type Refused struct {
	// Words holds Slurm's own message.
	Words string
	// Full is true if Slurm may accept the job later: the job exceeds a limit of jobs in
	// the queue, or its partition is not available now.
	Full bool
}

func (r *Refused) Error() string { return r.Words }

// Options configures a Client.
type Options struct {
	// State is the folder for the folders of objects. Compute nodes must see it, too.
	State string
	// Interval is the time between two queries of the queue, and Timeout the limit of
	// one command.
	Interval, Timeout time.Duration
	// PerMinute limits submissions. Zero means no limit.
	PerMinute int
	// Env is the environment of sbatch, and so of the jobs.
	Env []string
	// Ask runs a command of Slurm, except for sbatch.
	Ask slurm.Ask
	Log *slog.Logger
}

// Default returns the options of a client with a folder of state.
func Default(state string, log *slog.Logger) Options {
	env := JobEnv(os.Environ())
	return Options{
		State: state, Interval: 5 * time.Second, Timeout: 30 * time.Second, PerMinute: 120,
		Env: env, Ask: slurm.AskLongWith(env), Log: log,
	}
}

// environment lists the variables that jobs receive: for the user's programs, and for the
// commands of Slurm. Variables whose names end in "*" begin so. Others, such as KUBECONFIG or
// a token of the controller, would be visible to whoever can create an object.
var environment = []string{
	"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "LANGUAGE", "LC_*", "TZ", "MANPATH", "INFOPATH", "LD_LIBRARY_PATH",
	"BASH_ENV", "ENV", "BASH_FUNC_*", "MODULE*", "LMOD_*", "LOADEDMODULES", "_LMFILES_", "__LMOD_*", "SLURM_CONF", "SLURM_CONF_SERVER", "KRB5CCNAME",
}

// JobEnv returns the entries of an environment that jobs receive.
func JobEnv(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return !slices.ContainsFunc(environment, func(pattern string) bool {
			prefix, open := strings.CutSuffix(pattern, "*")
			return name == pattern || open && strings.HasPrefix(name, prefix)
		})
	})
}

// Client hands jobs to Slurm and follows them. Its methods may be called concurrently.
type Client struct {
	options Options

	// submitting admits one submission at a time, and asking one query of the queue.
	submitting, asking chan struct{}
	// lastSubmit is the time of the last call of sbatch.
	lastSubmit time.Time
	last       *snapshot

	mu sync.Mutex
	// known holds the jobs that States has seen, or that were submitted, by UID.
	known map[string]*known
	// noAccounting is the time until which sacct is not asked.
	noAccounting time.Time
	// removed is the time of the last removal of forgotten folders.
	removed time.Time
}

// New returns a client. It makes the folder of state.
func New(options Options) (*Client, error) {
	if err := os.MkdirAll(options.State, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder for jobs' records: %w", err)
	}
	return &Client{
		options: options, submitting: make(chan struct{}, 1), asking: make(chan struct{}, 1),
		known: map[string]*known{},
	}, nil
}

// Release lets a held job start. It returns nil if the job has ended.
func (c *Client) Release(ctx context.Context, id string) error {
	return c.tell(ctx, "scontrol", "release", id)
}

// Cancel ends a job. It returns nil if the job has ended, also when Slurm has given its
// number to another job.
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
		snapshot, err := c.look(ctx, time.Now().Add(-c.options.Interval))
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
	return c.tell(ctx, "scancel", id)
}

// over matches the messages for jobs that have ended: ESLURM_ALREADY_DONE and
// ESLURM_INVALID_JOB_ID (slurm_errno.c).
var over = []string{"already finished", "already completing or completed", "Invalid job id"}

func (c *Client) tell(ctx context.Context, command ...string) error {
	_, err := c.options.Ask(ctx, command...)
	switch {
	case err == nil || matches(err.Error(), over):
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded) || matches(err.Error(), unavailable):
		return &Unavailable{shorten(err, command)}
	}
	return &Refused{Words: shorten(err, command).Error()}
}

// shorten removes the arguments of a command from its error.
func shorten(err error, command []string) error {
	return errors.New(strings.Replace(err.Error(), strings.Join(command, " "), command[0], 1))
}

// unavailable matches messages of Slurm commands if the controller, or munge, does not
// answer (slurm_errno.c).
var unavailable = []string{
	"Unable to contact slurm controller", "Socket timed out", "Zero Bytes were transmitted", "Connection refused", "Connection timed out",
	"Connection reset", "No route to host", "Network is unreachable", "Transport endpoint", "standby mode", "authentication error", "munge", "Munge",
	"Could not establish a configuration source", "temporarily unable", "temporarily unavailable", "Unexpected message received",
	"Communication connection failure", "Communication shutdown failure", "Message receive failure", "Message send failure",
	"Rate limit exceeded", "Unspecified error", "Incompatible versions",
}

// full matches messages for jobs that Slurm may accept later. For a limit, Slurm first names
// it, such as QOSMaxSubmitJobPerUserLimit. The text for "policy" that follows is the same for
// every limit.
var full = []string{"SubmitJob", "MaxJobCount", "Requested partition configuration not available now"}

func matches(text string, any []string) bool {
	for _, part := range any {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}
