package cli

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/access/login"
	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/launch"
)

func newUpCommand() *cobra.Command {
	var spec cluster.Spec
	var shown verbosity
	var foreground, env, here bool
	command := &cobra.Command{
		Use:   "up [flags] [-f MANIFEST]... [--image ARCHIVE]...",
		Short: "Start a cluster that stays for the rest of the allocation",
		Long: `Starts a cluster over all nodes of the allocation (salloc, or a batch script),
or on this machine if there is none, and returns when the cluster is ready.
The cluster ends with 'berth down', or with the allocation.

  berth run -f job.yaml       runs a workload on it, as often as you like
  berth kubectl get pods      and all other commands reach it
  berth shell                 is a shell with kubectl and helm for it

The objects that the manifests create stay until the cluster ends.

On a host that belongs to a Slurm cluster but is not in an allocation, such as a
login host, no cluster is started: up ends with code 78. --here starts one
anyway, if the site permits it.`,
		Example: `  salloc -N3 --mem=8G
  berth up --image app.tar
  berth run -f job.yaml
  berth down

  eval "$(berth up --env)"    # kubectl and helm in this shell`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
	}
	flags := command.Flags()
	flags.SortFlags = false
	addSpecFlags(flags, &spec)
	addHereFlag(flags, &here)
	addElasticFlags(flags, &spec)
	flags.BoolVar(&env, "env", false, "print shell commands that make kubectl and helm use the cluster")
	flags.BoolVar(&foreground, launch.UpFlag, false, "do not return until the cluster has ended")
	shown.addFlags(flags)
	command.RunE = func(command *cobra.Command, _ []string) error {
		spec.Stay = true
		changed := changedFlags(flags, "env")
		preferred, err := prefer(flags)
		if err != nil {
			return err
		}
		if foreground {
			return run(command, spec, runFlags{given: given(flags), here: here}, preferred, shown)
		}
		if err := shown.check(); err != nil {
			return err
		}
		progress := newLines(command.ErrOrStderr(), shown) // the process that does the steps shows them
		log := slog.New(progress)
		args := append([]string{"up", "--" + launch.UpFlag}, changed...)
		facts, err := launch.Up(command.Context(), launch.Options{
			Spec: spec, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: command.ErrOrStderr(), Getenv: preferred.Getenv, Report: progress.step, Log: log,
			Here: here, HereForbidden: preferred.forbidden["here"],
		}, args)
		err = explainOutside(command.Context(), err, preferred)
		already := errors.Is(err, launch.ErrIsUp)
		switch {
		case already && !onlyErrIsUp(err), !already && err != nil:
			return err
		case already:
			log.Info(launch.Describe(facts, time.Now()) + "; it was already running, and its options do not change")
		default:
			log.Info(launch.Describe(facts, time.Now()) + "; 'berth run', 'berth kubectl' and 'berth shell' use it, 'berth down' ends it")
		}
		if !env {
			return nil
		}
		session, err := reachForGood(command, facts.Job)
		if err != nil {
			return err
		}
		defer session.Close()
		return writeExports(command.OutOrStdout(), session)
	}
	return command
}

func newDownCommand() *cobra.Command {
	var grace time.Duration
	var shown verbosity
	command := &cobra.Command{
		Use:   "down [JOB]",
		Short: "End the cluster that 'berth up' has started",
		Long: `Asks all pods to end within their grace periods, then ends the cluster and
returns when nothing of it is left. The allocation stays.`,
		Args: atMostAJob,
		RunE: func(command *cobra.Command, args []string) error {
			job, _ := takeJob(args)
			if grace < 0 {
				return &usageError{fmt.Errorf("--grace %s: give a time such as 10s or 5m", grace)}
			}
			if err := shown.check(); err != nil {
				return err
			}
			progress := newLines(command.ErrOrStderr(), shown)
			code, err := launch.Down(command.Context(), launch.Options{Getenv: os.Getenv, Log: slog.New(progress)}, job, grace)
			if err != nil && job != "" {
				// If the job cannot be entered, report why instead.
				if place, placeErr := newPlace(); placeErr == nil {
					if problem := place.JobProblem(command.Context(), job); problem != nil {
						return problem
					}
				}
			}
			if err == nil && code != 0 {
				err = &result{code}
			}
			return err
		},
	}
	command.Flags().DurationVar(&grace, "grace", 0, "longest `time` that pods have to end (default: each pod's own grace period)")
	shown.addFlags(command.Flags())
	return command
}

// onlyErrIsUp reports whether an error is launch.ErrIsUp without any other error.
func onlyErrIsUp(err error) bool { return err.Error() == launch.ErrIsUp.Error() }

// reachForGood opens a session whose tunnel, if it needs one, stays open until the
// cluster ends: the shell that uses the variables does not keep the tunnel open.
func reachForGood(command *cobra.Command, job string) (*login.Session, error) {
	place, err := newPlace()
	if err != nil {
		return nil, err
	}
	return place.Lasting().Connect(command.Context(), login.Target{Job: job})
}

// writeExports writes commands for a shell that set the session's variables and PATH.
func writeExports(w io.Writer, session *login.Session) error {
	for _, variable := range sessionEnv(session) {
		name, value, _ := strings.Cut(variable, "=")
		if _, err := fmt.Fprintf(w, "export %s=%s\n", name, quote(value)); err != nil {
			return err
		}
	}
	// Keep berth in PATH after the cluster, with its tools directory, is removed.
	self, err := os.Executable()
	if err == nil {
		_, err = fmt.Fprintf(w, "export PATH=%s:%s:\"$PATH\"\n", quote(filepath.Dir(self)), quote(session.Bin))
	}
	return err
}

// quote returns the value as one word for a shell.
func quote(value string) string { return "'" + strings.ReplaceAll(value, "'", `'\''`) + "'" }
