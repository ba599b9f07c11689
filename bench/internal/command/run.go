package command

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"berth.dev/berth/bench/internal/campaign"
	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/system"
)

func newRun() *cobra.Command {
	return measure("quick", &cobra.Command{
		Use:   "run [flags] [CASE...]",
		Short: "Measure, and write records",
		Long: `Runs the trials of a plan that the file of records does not have yet. Inside a
Slurm job each trial is a step; outside of a job, it requests one with salloc.
Without Slurm, trials are processes of this machine.`,
	})
}

// newImages returns a separate command for the plan of images.
func newImages() *cobra.Command {
	return measure("images", &cobra.Command{
		Use:   "images [flags] [CASE...]",
		Short: "Measure how images reach nodes: small changes, cold nodes, lazy pulls",
		Long: `The same as 'berth bench run --plan images': two experiments on the delivery of
images from the bench's own registry, over a connection of limited rate. The
registry runs on this host, which all hosts of the job must reach; they also
need the folder of --shared. 'make -C test/images paper' builds the images.`,
		Example: `  berth bench images --images test/images/out/paper --image test/images/out/docker/bench.tar
  berth bench images --images paper --before 'sudo drop-caches' lazy`,
	})
}

// measure makes a command measure the named plan, which --plan replaces.
func measure(name string, command *cobra.Command) *cobra.Command {
	var out, before, link string
	local, dry := false, false
	files := files{archive: "bench.tar", mpi: "hpc.tar", images: "paper", shared: "."}
	command.RunE = func(command *cobra.Command, args []string) error {
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
		recorded, err := record.ReadFile(out)
		if err != nil {
			return err
		}
		if err := samePlan(p, recorded, out); err != nil {
			return err
		}
		files.before = strings.Fields(before)
		if err := sameBefore(files.before, recorded, out); err != nil && !dry {
			return err
		}
		if dry {
			return preview(command.OutOrStdout(), p, recorded)
		}
		if salloc, err := exec.LookPath("salloc"); err == nil && !local && os.Getenv("SLURM_JOB_ID") == "" {
			return allocate(salloc, p)
		}
		where, err := place(command.Context(), p, files, local)
		if err != nil {
			return err
		}
		where.SameHost = p.Links[p.Link].SameHost
		if len(plan.Remaining(p.Schedule(), recorded)) == 0 {
			fmt.Fprintf(os.Stderr, "%s has all trials of the plan %s\n", out, p.Name)
			return nil
		}
		records, err := record.Append(out)
		if err != nil {
			return err
		}
		c := campaign.Campaign{Plan: p, Place: where, Records: records, Before: recorded, Progress: os.Stderr, New: system.New}
		return errors.Join(c.Run(command.Context()), records.Close())
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&name, "plan", name, "name of a built-in `plan`, or a file")
	flags.StringVar(&out, "out", "", "`file` of records (default: the plan's name and .jsonl)")
	flags.StringVar(&files.archive, "image", files.archive, "`archive` of the image with the programs")
	flags.StringVar(&files.mpi, "mpi-image", files.mpi, "`archive` of the image with MPI and its programs")
	flags.StringVar(&files.images, "images", files.images, "`folder` with the images to deliver")
	flags.StringVar(&files.shared, "shared", files.shared, "`folder` that all hosts see, for delivered images")
	flags.StringVar(&files.step, "step-image", "", "`directory` that all hosts see, with the image of the steps of systems that use the driver job")
	flags.StringVar(&before, "before", "", "`command` to run on each host before images are delivered, such as one that drops page caches")
	flags.StringVar(&link, "link", "", "the plan's `link` that is set up between the hosts")
	flags.BoolVar(&local, "local", false, "measure on this machine, without an allocation; systems that submit their own jobs do so from here")
	flags.BoolVar(&dry, "dry-run", false, "show which trials would run and how long they take")
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

// sameBefore refuses to mix trials with dropped page caches with others.
func sameBefore(now []string, before []record.Line, path string) error {
	words := strings.Join(now, " ")
	for _, line := range before {
		if line.Session != nil && line.Session.Before != words {
			return fmt.Errorf("%s has records of --before %q, and this is %q: give the same, or another file with --out", path, line.Session.Before, words)
		}
	}
	return nil
}

// allocate replaces this process by salloc, with the same command line inside the
// job.
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
