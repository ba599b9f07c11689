package system

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"berth.dev/berth/bench/internal/beside"
	"berth.dev/berth/bench/internal/step"
)

// Beside is a sequence of the bench that runs instead of a program.
type Beside struct {
	// Cluster names the sequence next to a cluster of that many nodes, and Job
	// the sequence in a plain job of that many hosts; package beside has the
	// names. Empty means that there is none.
	Cluster, Job string
	Nodes        int
	Parameters   map[string]string
	// MPI makes pods use the MPI image.
	MPI bool
	// NoPods is set if the sequence starts no pods, so that no image is imported.
	NoPods bool

	counted bool
	// through is the command that starts programs of a job.
	through []string
	// in holds the options for jobs that the sequence submits.
	in jobOptions
}

// spec returns the sequence's configuration. Its time limit is shorter than the trial's,
// so that it can report what it waited for.
func (b Beside) spec(what, image string, place Place, kubectl ...string) (string, error) {
	text, err := json.Marshal(beside.Spec{
		What: what, Nodes: b.Nodes, Hosts: place.first(b.Nodes), CPUs: place.CPUs, MemoryMB: place.MemoryMB, Image: image, Kubectl: kubectl, Given: len(kubectl) > 0, Counted: b.counted, Parameters: b.Parameters, Through: b.through,
		Timeout: place.Timeout * 9 / 10, Job: b.in.options, Step: b.in.step, Outside: b.in.outside,
	})
	return string(text), err
}

// mpiImage is the name of the image with MPI.
const mpiImage = "docker.io/library/hpc:1"

// noMPIImage returns the error of a system that could run MPI with another
// image.
func noMPIImage(err error) error {
	return &Unsupported{fmt.Sprintf("look for the image with MPI: %v; 'make -C test/images hpc' makes it, --mpi-image names it", err)}
}

// first returns the first n hosts, for a step.
func (p Place) first(n int) []string {
	if !p.InSlurm() {
		return nil
	}
	return p.Hosts[:min(n, len(p.Hosts))]
}

// beside runs a sequence next to a cluster of berth.
func (b *berth) beside(ctx context.Context, what Beside) (Output, error) {
	if what.Cluster == "" {
		return Output{}, &Unsupported{"it is of the hosts, without a cluster"}
	}
	image, archive := b.place.Image, b.place.Archive
	if what.MPI {
		image, archive = mpiImage, b.place.MPIArchive
		if _, err := os.Stat(archive); err != nil {
			return Output{}, noMPIImage(err)
		}
	}
	text, err := what.spec(what.Cluster, image, b.place)
	if err != nil {
		return Output{}, err
	}
	if !b.place.InSlurm() && what.Nodes > 1 {
		return Output{}, &Unsupported{"it needs a job of several hosts"}
	}
	argv := []string{b.place.Self, step.Arg, "--usage", "--", b.program, "run", "--quiet"}
	if !what.NoPods {
		argv = append(argv, "--image", archive)
	}
	argv = append(append(argv, b.options...), "--fast-path", b.fastPath(), "--", b.place.Self, step.BesideArg, text)
	return b.place.runBeside(ctx, b.place.step(b.place.first(what.Nodes), argv))
}

// runBeside runs a sequence, and records what it reports besides figures. The case checks
// the result itself.
func (p Place) runBeside(ctx context.Context, argv []string) (Output, error) {
	out, err := p.Run(ctx, argv, "")
	var r beside.Result
	if err == nil && json.Unmarshal([]byte(out.Stdout), &r) == nil {
		out.Step.Left, out.Step.MPI = r.Left, r.MPI
	}
	return out, err
}

// beside runs a sequence here, in the job. The sequence starts its own steps.
func (b *bare) beside(ctx context.Context, what Beside) (Output, error) {
	if what.Job == beside.Steps {
		return Output{}, &Unsupported{"it is measured in separate jobs: by the driver job"}
	}
	if what.Job == "" {
		return Output{}, &Unsupported{"bare metal has no cluster"}
	}
	text, err := what.spec(what.Job, "", b.place)
	if err != nil {
		return Output{}, err
	}
	return b.place.runBeside(ctx, []string{b.place.Self, step.BesideArg, text})
}

// beside runs a sequence beside the existing cluster.
func (k *kubeconfig) beside(ctx context.Context, what Beside) (Output, error) {
	if what.Cluster == "" {
		return Output{}, &Unsupported{"it is of the hosts, without a cluster"}
	}
	if what.MPI {
		return Output{}, &Unsupported{"its image with MPI has no place in a given cluster yet"}
	}
	text, err := what.spec(what.Cluster, k.image, k.place, k.kubectl()...)
	if err != nil {
		return Output{}, err
	}
	argv := []string{k.place.Self, step.BesideArg, text}
	if k.place.InSlurm() {
		// A step on the host sees the processes of the job.
		argv = slices.Concat(k.place.step(k.place.host(0), nil), []string{"env", "KUBECONFIG=" + os.Getenv("KUBECONFIG")}, argv)
	}
	return k.place.runBeside(ctx, argv)
}
