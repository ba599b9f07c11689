// Package command is the command line of berth bench.
package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"berth.dev/berth/bench/internal/campaign"
	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/system"
	"berth.dev/berth/bench/plans"
)

// Exit codes, the same as berth's.
const (
	exitUsage  = 64
	exitFailed = 70
)

// Main runs the command line and returns the exit code.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	understood := false
	root.PersistentPreRun = func(*cobra.Command, []string) { understood = true }
	command, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "berth bench: interrupted; the same command continues from here")
		return 128 + int(syscall.SIGINT)
	}
	fmt.Fprintln(os.Stderr, "berth bench:", err)
	if !understood {
		fmt.Fprintf(os.Stderr, "berth bench: '%s --help' lists its options and arguments\n", command.CommandPath())
		return exitUsage
	}
	return exitFailed
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:         "bench",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "berth bench"},
		Short:       "Measure what a way of running containers costs on this cluster",
		Long: `Measures what a way of running containers costs: the same programs on bare
metal, in berth's pods and in other systems, in turn, and writes a report.

Every trial is recorded as soon as it is made, and repeating the command
continues where it was interrupted.`,
		Example: `  berth bench list
  berth bench plan ksi
  berth bench run --plan ksi --link plain --image bench.tar --out ksi.jsonl
  berth bench report ksi.jsonl --out report
  berth bench compare before.jsonl after.jsonl`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpFunc(writeHelp)
	root.AddCommand(newList(), newPlan(), newRun(), newImages(), newReport(), newCompare(), newLink())
	return root
}

// readPlan reads a plan by name or path.
func readPlan(name string, only []string) (*plan.Plan, error) {
	where, text, err := plans.Read(name)
	if err != nil {
		return nil, err
	}
	p, err := plan.Parse(where, text, campaign.Known())
	if err != nil {
		return nil, err
	}
	return p, elsewhere(p.Only(only))
}

// elsewhere adds to the error about a missing case the built-in plans that have the
// case.
func elsewhere(err error) error {
	var none plan.NoCaseError
	if !errors.As(err, &none) {
		return err
	}
	var names []string
	for _, name := range plans.Names() {
		if p, err := readPlan(name, nil); err == nil && p.Has(none.Case) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("%w; no built-in plan has it", err)
	}
	return fmt.Errorf("%w; these plans have it (--plan): %s", err, strings.Join(names, ", "))
}

// files holds the files that a command line names for the measurement.
type files struct {
	archive, mpi, images, shared, step string
	before                             []string
}

// place finds berth's programs and the hosts of the job.
func place(ctx context.Context, p *plan.Plan, files files, local bool) (system.Place, error) {
	self, err := os.Executable()
	if err != nil {
		return system.Place{}, err
	}
	own := filepath.Dir(self)
	where := system.Place{
		Self: self, Berth: filepath.Join(own, "../../bin/berth"), Kubectl: filepath.Join(own, "kubectl"),
		Image: "docker.io/library/berth-bench:1", CPUs: p.CPUs, MemoryMB: p.MemoryMB, Timeout: p.Timeout,
		Before: files.before, StepImage: files.step,
	}
	for _, path := range []struct {
		to   *string
		from string
	}{{&where.Archive, files.archive}, {&where.MPIArchive, files.mpi}, {&where.Images, files.images}, {&where.Shared, files.shared}} {
		if *path.to, err = filepath.Abs(path.from); err != nil {
			return where, err
		}
	}
	if _, err := os.Stat(where.Archive); err != nil {
		return where, fmt.Errorf("find the image of the programs: %w; build it with 'make -C test/images bench' and give it with --image", err)
	}
	list := os.Getenv("SLURM_JOB_NODELIST")
	if local || list == "" {
		return where, nil
	}
	out, err := exec.CommandContext(ctx, "scontrol", "show", "hostnames", list).Output()
	if err != nil {
		return where, fmt.Errorf("ask Slurm for the hosts of the job: %w", err)
	}
	where.Hosts = strings.Fields(string(out))
	if need := p.Hosts(campaign.Known()); len(where.Hosts) < need {
		return where, fmt.Errorf("the plan %s needs %d hosts and the job has %d: salloc -N%d", p.Name, need, len(where.Hosts), need)
	}
	where.Hosts = where.Hosts[:p.Hosts(campaign.Known())]
	return where, nil
}
