package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"berth.dev/berth/internal/access/login"
	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/launch/allocation"
	"berth.dev/berth/internal/launch/crash"
)

// result carries a command's exit code through cobra, which knows errors only.
// The command has already printed its messages.
type result struct{ code int }

func (r *result) Error() string { return fmt.Sprintf("exit code %d", r.code) }

// Main runs the command line and returns the exit code.
func Main(args []string) int {
	crash.KeepStderr()
	// The client library logs its retries to standard error, which belongs to
	// the workload. Failures that matter are returned as errors.
	klog.SetLogger(logr.Discard())
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go cancelOnSignal(cancel)
	said := newMessages(os.Stderr)
	defer said.finish(ctx)

	root := newCommandLine(args)
	root.SetErr(said)
	command, err := root.ExecuteContextC(ctx)
	// Look only for *result: the error of a program that failed has an exit code, too.
	var coded *result
	switch {
	case err == nil:
		return 0
	case errors.As(err, &coded):
		return coded.code
	}
	var usage *usageError
	var problem *login.Problem
	code := exitcode.Of(err)
	switch {
	case errors.As(err, &usage):
		code = exitcode.Usage
	case errors.As(err, &problem):
		code = problem.Code
	}
	// All tasks of a step have the same command line, so only one reports the
	// mistake.
	if task := os.Getenv("SLURM_PROCID"); code == exitcode.Usage && task != "" && task != "0" {
		return code
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(said, "berth:", strings.TrimSuffix(line, "\n"))
	}
	if usage != nil {
		if command.Name() == "help" {
			command = command.Root()
		}
		fmt.Fprintf(said, "berth: '%s --help' lists its options and arguments\n", command.CommandPath())
	}
	return code
}

// usageError wraps a mistake in the command line.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// sayWhatToGive rewords a mistake in an option: it names the expected value
// where the library names Go functions.
func sayWhatToGive(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) || whatToGive(invalid.GetFlag()) == "" {
		return err
	}
	return fmt.Errorf("--%s %q: %s", invalid.GetFlag().Name, invalid.GetValue(), whatToGive(invalid.GetFlag()))
}

// wrongValue returns the same error for a value that is not from the command line.
func wrongValue(flag *pflag.Flag, value string, err error) error {
	if give := whatToGive(flag); give != "" {
		return fmt.Errorf("%s %q: %s", flag.Name, value, give)
	}
	return fmt.Errorf("%s %q: %w", flag.Name, value, err)
}

// whatToGive describes the values that an option takes. It is empty for kinds whose
// errors in the library are clear.
func whatToGive(flag *pflag.Flag) string {
	return map[string]string{
		"duration": "give a time such as 30s, 5m or 1h30m",
		"int":      "give a whole number",
		"bool":     "give true or false",
	}[flag.Value.Type()]
}

// cancelOnSignal ends the run on the first signal. The run itself looks out for
// a second one, while it waits for the workload to end.
func cancelOnSignal(cancel context.CancelCauseFunc) {
	signals := make(chan os.Signal, 1)
	for _, ending := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		// nohup, and a shell that starts a program in the background of a
		// script, make the program ignore the signals that are not meant for it.
		if !signal.Ignored(ending) {
			signal.Notify(signals, ending)
		}
	}
	for received := range signals {
		cancel(allocation.EndedBy(received.(syscall.Signal)))
	}
}

// newCommandLine returns the root command for arguments.
func newCommandLine(args []string) *cobra.Command {
	root := newRoot()
	args, helpAll := cutHelpAll(args)
	root.SetHelpFunc(helpWriter(helpAll))
	root.SetArgs(args)
	return root
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "berth",
		Short: "A complete Kubernetes inside a Slurm job, without root",
		Long: `berth starts a complete Kubernetes cluster inside a Slurm job (or on any Linux
machine), runs a workload on it, and leaves nothing behind. It needs no root,
no daemon and no preparation by an administrator.`,
		Version:       cluster.Version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArguments,
		RunE:          func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	root.SetFlagErrorFunc(func(command *cobra.Command, err error) error {
		return &usageError{suggestFlag(command, sayWhatToGive(err))}
	})
	// Commands are listed in the order of their use. Cobra's only option for this is
	// a package variable.
	cobra.EnableCommandSorting = false
	root.AddGroup(commandGroups()...)
	for _, group := range []struct {
		id       string
		commands []*cobra.Command
	}{
		{groupRun, []*cobra.Command{newRunCommand(), newSubmitCommand(), newUpCommand(), newJoinCommand(), newDownCommand(), newWorkloadCommand(), newSlurmJobsCommand()}},
		{groupReach, []*cobra.Command{
			newKubectlCommand(), newShellCommand(), newLogsCommand(), newForwardCommand(), newOpenCommand(),
			newProxyCommand(), newKubeconfigCommand(), newServeCommand(),
		}},
		{groupWatch, []*cobra.Command{newListCommand(), newStatusCommand(), newTopCommand(), newMetricsCommand()}},
		{groupImage, []*cobra.Command{newImageCommand()}},
		{groupHost, []*cobra.Command{newDoctorCommand(), newCleanupCommand(), newBenchCommand(), newVersionCommand()}},
	} {
		for _, command := range group.commands {
			command.GroupID = group.id
			root.AddCommand(command)
		}
	}
	root.SetHelpCommandGroupID(groupHost)
	root.SetCompletionCommandGroupID(groupHost)
	checkHelp(root)
	describeCompletion(root)
	completeJobs(root)
	return root
}

func noArguments(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if command.HasSubCommands() {
		return noCommand(command, args[0])
	}
	return &usageError{fmt.Errorf("unexpected argument %q", args[0])}
}

func noCommand(parent *cobra.Command, name string) error {
	err := fmt.Errorf("no command %q", name)
	parent.SuggestionsMinimumDistance = 2 // letters that differ
	if like := parent.SuggestionsFor(name); len(name) > 2 && len(like) > 0 {
		err = fmt.Errorf("%w; is it %s?", err, strings.Join(like, " or "))
	}
	return &usageError{err}
}

// suggestFlag adds similar options to the error for an unknown option.
func suggestFlag(command *cobra.Command, err error) error {
	var missing *pflag.NotExistError
	if !errors.As(err, &missing) || len(missing.GetSpecifiedName()) < 3 {
		return err
	}
	// Cobra suggests only commands, so turn the options into commands.
	options := &cobra.Command{SuggestionsMinimumDistance: 2}
	command.Flags().VisitAll(func(flag *pflag.Flag) {
		options.AddCommand(&cobra.Command{Use: flag.Name, Run: func(*cobra.Command, []string) {}})
	})
	if like := options.SuggestionsFor(missing.GetSpecifiedName()); len(like) > 0 {
		err = fmt.Errorf("%w; is it --%s?", err, strings.Join(like, " or --"))
	}
	return err
}

// checkHelp makes 'help' refuse an unknown command. The library would show the
// parent's help.
func checkHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, err := root.Find([]string{"help"})
	if err != nil || help == root {
		return // there is none
	}
	help.Args = func(_ *cobra.Command, args []string) error {
		command, rest, err := root.Find(args)
		if err != nil || len(rest) == 0 || !command.HasSubCommands() {
			return err
		}
		return noCommand(command, rest[0])
	}
}
