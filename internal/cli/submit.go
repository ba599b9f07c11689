package cli

import (
	"log/slog"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/batch"
	"berth.dev/berth/internal/launch"
)

func newSubmitCommand() *cobra.Command {
	var spec cluster.Spec
	var existing existingFlags
	var printOnly bool
	command := &cobra.Command{
		Use:   "submit [sbatch options] [flags] [-f MANIFEST]... [--image ARCHIVE]... [-- COMMAND...]",
		Short: "Submit a batch job that does what 'berth run' does",
		Long: `Writes a batch script that calls 'berth run', and submits it with sbatch. All
options of sbatch are passed on unchanged, including options of your site's
plugins; see 'man sbatch'. With --array, every element has its own cluster.

The manifests are read now and become part of the script, so later changes to
the files have no effect. Unknown fields and kinds, values of a wrong type and
similar mistakes are refused with code 65; what only a cluster knows is not
checked. Image archives and a command must still be at the same path when the
job runs.

Output goes where sbatch puts it, to slurm-JOB.out unless --output or --error
name other files. With --wait (-W) berth waits until the job ends, shows what is
written to those files meanwhile, and ends with the job's exit code, for an
array the highest. Ctrl-C then ends the waiting, not the job.`,
		Example: `  berth submit -N3 -t 60 --mem=4G -f job.yaml --image app.tar
  berth submit --wait -p short -t 10 -f job.yaml
  berth submit --array=1-100%10 --mem=2G -- ./element.sh
  berth submit --dependency=afterok:4711 -f next.yaml
  berth submit --print -N3 -f job.yaml >job.sh`,
		DisableFlagsInUseLine: true,
		// sbatch's options are not cobra's.
		DisableFlagParsing: true,
	}
	flags := pflag.NewFlagSet("submit", pflag.ContinueOnError)
	flags.SortFlags = false
	addSpecFlags(flags, &spec)
	existing.addFlags(flags)
	flags.BoolVar(&printOnly, "print", false, "print the batch script, and submit nothing")
	flags.BoolP("help", "h", false, "show this help")
	command.Flags().SortFlags = false
	command.Flags().AddFlagSet(flags) // for help and the manual; they are parsed below
	command.RunE = func(command *cobra.Command, args []string) error {
		line, err := batch.Split(args, ownFlags(flags))
		if err == nil {
			err = flags.Parse(line.Own)
		}
		if err != nil {
			return &usageError{err}
		}
		if flags.Changed("help") {
			return command.Help()
		}
		dir, err := os.Getwd()
		if err != nil {
			return err
		}
		// Report problems in settings files now. The job reads the files again.
		if _, err := readPreferences(os.Getenv); err != nil {
			return err
		}
		spec.Command = line.Command
		err = existing.absolute(given(flags))
		if err == nil {
			err = launch.Existing(existing).Check(given(flags), spec.Command, spec.Manifests)
		}
		if err != nil {
			return &usageError{err}
		}
		spec.Absolute(dir)
		_, quiet := line.Get("quiet")
		progress := newLines(command.ErrOrStderr(), verbosity{quiet: quiet})
		code, err := launch.Submit(command.Context(), launch.SubmitOptions{
			Spec: spec, Arguments: line, RunFlags: append(changedFlags(flags, "file", "print", "kubeconfig"), existing.arguments()...), Print: printOnly,
			CommandLine: append([]string{"berth", "submit"}, args...),
			Stdin:       os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(), Log: slog.New(progress),
		})
		if err == nil && code != 0 {
			err = &result{code}
		}
		return err
	}
	return command
}

// ownFlags reports for berth's flags, by name or letter, whether they take a
// value.
func ownFlags(flags *pflag.FlagSet) batch.Own {
	return func(name string) (takesValue, ok bool) {
		flag := flags.Lookup(name)
		if len(name) == 1 {
			flag = flags.ShorthandLookup(name)
		}
		if flag == nil {
			return false, false
		}
		return flag.NoOptDefVal == "", true
	}
}

// changedFlags returns the arguments that set the flags to their current values.
func changedFlags(flags *pflag.FlagSet, except ...string) []string {
	var words []string
	flags.Visit(func(flag *pflag.Flag) {
		if slices.Contains(except, flag.Name) {
			return
		}
		values := []string{flag.Value.String()}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			words = append(words, "--"+flag.Name+"="+value)
		}
	})
	return words
}
