package command

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"berth.dev/berth/bench/internal/campaign"
	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/system"
)

func newRun() *cobra.Command {
	name, out, archive, link := "quick", "", "bench.tar", ""
	local, dry := false, false
	command := &cobra.Command{
		Use:   "run [flags] [CASE...]",
		Short: "Measure, and write records",
		Long: `Makes the trials of a plan that the file of records does not have yet. Inside of
a job of Slurm they are steps of it, one after the other; where there is Slurm
but no job, salloc is asked for one; otherwise they are processes of this machine.`,
		RunE: func(command *cobra.Command, args []string) error {
			p, err := readPlan(name, args)
			if err != nil {
				return err
			}
			if !dry || link != "" {
				if err := p.Under(link); err != nil {
					return err
				}
			}
			if out == "" {
				out = p.Name + ".jsonl"
			}
			before, err := record.ReadFile(out)
			if err != nil {
				return err
			}
			if err := samePlan(p, before, out); err != nil {
				return err
			}
			if dry {
				return preview(command.OutOrStdout(), p, before)
			}
			if salloc, err := exec.LookPath("salloc"); err == nil && !local && os.Getenv("SLURM_JOB_ID") == "" {
				return allocate(salloc, p)
			}
			where, err := place(command.Context(), p, archive, local)
			if err != nil {
				return err
			}
			if len(plan.Remaining(p.Schedule(), before)) == 0 {
				fmt.Fprintf(os.Stderr, "%s has all trials of the plan %s\n", out, p.Name)
				return nil
			}
			records, err := record.Append(out)
			if err != nil {
				return err
			}
			c := campaign.Campaign{Plan: p, Place: where, Records: records, Before: before, Progress: os.Stderr, New: system.New}
			return errors.Join(c.Run(command.Context()), records.Close())
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&name, "plan", name, "`plan` that comes along, or a file")
	flags.StringVar(&out, "out", "", "`file` of records (default: the plan's name and .jsonl)")
	flags.StringVar(&archive, "image", archive, "`archive` of the image with the programs")
	flags.StringVar(&link, "link", "", "the plan's `link` between the hosts that is set up")
	flags.BoolVar(&local, "local", false, "measure on this machine, without Slurm")
	flags.BoolVar(&dry, "dry-run", false, "say what would be made and how long it takes")
	return command
}

// samePlan refuses to mix the records of two plans: a file has one order and one
// set of parameters.
func samePlan(p *plan.Plan, before []record.Line, path string) error {
	for _, line := range before {
		if line.Session != nil && line.Session.Plan != p.Text {
			return fmt.Errorf("%s has records of another plan (%s): give another file with --out", path, line.Session.Name)
		}
	}
	return nil
}

// allocate becomes salloc, with the same command line inside of the job.
func allocate(salloc string, p *plan.Plan) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	hosts := strconv.Itoa(p.Hosts(campaign.Known()))
	argv := append([]string{
		"salloc", "-N" + hosts, "--ntasks-per-node=1", "-c" + strconv.Itoa(p.CPUs), "--mem=" + strconv.Itoa(p.MemoryMB), self,
	}, os.Args[1:]...)
	return fmt.Errorf("start salloc: %w", syscall.Exec(salloc, argv, os.Environ()))
}
