package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/batch"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/kube/workload"
	"berth.dev/berth/internal/launch/allocation"
	"berth.dev/berth/internal/launch/archive"
)

// SubmitOptions are the inputs of a submission from the command line.
type SubmitOptions struct {
	Spec cluster.Spec
	// Arguments is the parsed command line.
	Arguments batch.Arguments
	// RunFlags are the flags of berth run for the same Spec, without its
	// manifests and its command.
	RunFlags []string
	// CommandLine is the command line of this process.
	CommandLine []string
	// Print prints the script instead of submitting it.
	Print          bool
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Environ        []string
	Log            *slog.Logger
}

// Submit makes a batch job of a run and submits it. The manifests become part of
// the script, so errors in them are reported now, and later changes to the files
// have no effect. If the user waits for the job, Submit shows its output and
// returns its exit code.
func Submit(ctx context.Context, options SubmitOptions) (int, error) {
	sbatch, err := exec.LookPath("sbatch")
	if err != nil && !options.Print {
		return 0, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("submit a job: %w; call it where Slurm's commands are, or add their directory to PATH", err))
	}
	script, err := options.script(filepath.Dir(sbatch))
	if err != nil {
		return 0, err
	}
	if options.Print {
		if _, err := options.Stdout.Write(script); err != nil {
			return 0, exitcode.Wrap(exitcode.Output, fmt.Errorf("print the script: %w", err))
		}
		return 0, nil
	}
	wait := options.waits()
	job, err := batch.Submit(ctx, sbatch, batch.Submission{
		Options: options.Arguments.Options, Env: submitEnv(options.Environ), Script: script, Wait: wait,
		Stdout: options.Stdout, Stderr: options.Stderr,
	})
	if refused, ok := errors.AsType[*batch.Refused](err); ok {
		return refused.Code, nil
	}
	if err != nil {
		return 0, exitcode.Wrap(exitcode.Unavailable, err)
	}
	if !wait || job.ID == "" {
		return 0, nil
	}
	return options.await(ctx, job)
}

// waitVariable sets sbatch's --wait. berth waits by itself instead.
const waitVariable = "SBATCH_WAIT="

func (o SubmitOptions) waits() bool {
	_, given := o.Arguments.Get("wait")
	return given || slices.ContainsFunc(o.Environ, func(entry string) bool { return strings.HasPrefix(entry, waitVariable) })
}

func submitEnv(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool { return strings.HasPrefix(entry, waitVariable) })
}

// script reads and checks all inputs, and returns the script.
func (o SubmitOptions) script(commands string) ([]byte, error) {
	if err := errors.Join(o.Spec.Validate(), o.checkLine()); err != nil {
		return nil, exitcode.Wrap(exitcode.Usage, err)
	}
	if err := o.checkCommand(); err != nil {
		return nil, err
	}
	if _, err := archive.Find(o.Spec.Images); err != nil {
		return nil, exitcode.Wrap(exitcode.NoInput, err)
	}
	objects, manifests, err := workload.ReadText(o.Spec.Manifests, o.Stdin)
	if err != nil {
		return nil, inputError(err)
	}
	if err := workload.Check(objects); err != nil {
		return nil, exitcode.Wrap(exitcode.Manifest, err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find berth's own file: %w", err)
	}
	for _, path := range append([]string{self}, o.Spec.Images...) {
		if _, path, _ = cluster.SplitImage(path); onOwnDisk(path) {
			o.Log.Warn(fmt.Sprintf("%s may be on this host only: the nodes of the job need it at the same path", path))
		}
	}
	for _, object := range objects {
		if object.GetKind() == "Secret" {
			o.Log.Warn(fmt.Sprintf("%s becomes a part of the batch script, which Slurm keeps; a command can apply it from a file instead", object.Name()))
		}
	}
	args := append([]string{"run"}, o.RunFlags...)
	if len(manifests) > 0 {
		args = append(args, "--file=-")
	}
	if len(o.Spec.Command) > 0 {
		args = append(append(args, "--"), o.Spec.Command...)
	}
	return batch.Script{
		Name: o.jobName(), Options: o.Arguments.Options, Berth: self, Args: args, Commands: commands,
		Input: manifests, CommandLine: o.CommandLine,
	}.Text(), nil
}

// checkLine refuses options of sbatch that would not work.
func (o SubmitOptions) checkLine() error {
	var problems []error
	if _, given := o.Arguments.Get("wrap"); given {
		problems = append(problems, errors.New("--wrap: give the command after '--' instead"))
	}
	if _, given := o.Arguments.Get("input"); given && len(o.Spec.Manifests) > 0 {
		problems = append(problems, errors.New("--input together with -f: the manifests are the script's input; let the command open the file itself: -- sh -c 'COMMAND <FILE'"))
	}
	return errors.Join(problems...)
}

// checkCommand checks that the command exists. A command without a path may exist
// only on the nodes.
func (o SubmitOptions) checkCommand() error {
	if len(o.Spec.Command) == 0 || !strings.Contains(o.Spec.Command[0], "/") {
		return nil
	}
	path := o.Spec.Command[0]
	if dir, given := o.Arguments.Get("chdir"); given && !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	if _, err := exec.LookPath(path); err != nil {
		return exitcode.Wrap(exitcode.NoInput, fmt.Errorf("find the command: %w", err))
	}
	return nil
}

// jobName returns the default name of the job.
func (o SubmitOptions) jobName() string {
	for _, path := range append(o.Spec.Command[:min(1, len(o.Spec.Command))], o.Spec.Manifests...) {
		if name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)); name != "-" && name != "" && name != "." {
			return name
		}
	}
	return "berth"
}

// onOwnDisk reports whether a path is usually on a host's local disk.
func onOwnDisk(path string) bool {
	return slices.ContainsFunc([]string{"/tmp/", "/var/tmp/", "/dev/shm/", "/run/"}, func(dir string) bool { return strings.HasPrefix(path, dir) })
}

// await shows the output of a job until it ends, and returns its exit code. Among
// several parts it returns the highest code. A signal only ends the wait, not the
// job.
func (o SubmitOptions) await(ctx context.Context, job batch.Job) (int, error) {
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	defer func() {
		stop()
		group.Wait()
	}()
	tail := func(path string, to io.Writer) {
		group.Go(func() {
			if err := batch.Tail(following, path, to); err != nil {
				o.Log.Warn("the output of the job is not shown: " + err.Error())
			}
		})
	}
	watcher := batch.Watcher{Ask: slurm.AskSlurm, Log: o.Log, Started: func(state batch.State) {
		if _, array := o.Arguments.Get("array"); array {
			return // their outputs would be mixed
		}
		tail(state.Stdout, o.Stdout)
		if state.Stderr != state.Stdout {
			tail(state.Stderr, o.Stderr)
		}
	}}
	states, err := watcher.Watch(ctx, job)
	if reason, ok := errors.AsType[*allocation.Interrupted](err); ok {
		return 0, exitcode.Wrap(exitcode.Signal+int(reason.Signal), fmt.Errorf("no longer waiting for job %s, which goes on; to end it: scancel %s", job.ID, job.ID))
	}
	if err != nil {
		return 0, exitcode.Wrap(exitcode.Unavailable, err)
	}
	code := 0
	for _, state := range states {
		code = max(code, state.ExitCode())
	}
	return code, nil
}
