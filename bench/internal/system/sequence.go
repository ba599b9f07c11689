package system

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"berth.dev/berth/bench/internal/sequence"
	"berth.dev/berth/bench/internal/step"
)

// Sequence is a sequence of the bench that runs instead of a program.
type Sequence struct {
	// Cluster names the sequence next to a cluster of that many nodes, and Job
	// the sequence in a plain job of that many hosts; package sequence has the
	// names. Empty means that there is none.
	Cluster, Job string
	Nodes        int
	Parameters   map[string]string
	// MPI makes pods use the MPI image.
	MPI bool
	// NoPods is set if the sequence starts no pods, so that no image is imported.
	NoPods bool

	// counted makes the sequence report the share of connections with the fast path.
	counted bool
	// through is the container command that starts programs of a job.
	through []string
	// in holds the options for jobs that the sequence submits.
	in jobOptions
}

// spec returns the sequence's configuration. Its time limit is shorter than the trial's,
// so that it can report what it waited for.
func (b Sequence) spec(what, image string, place Place, kubectl ...string) (string, error) {
	text, err := json.Marshal(sequence.Spec{
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
	if !p.inSlurm() {
		return nil
	}
	return p.Hosts[:min(n, len(p.Hosts))]
}

// sequence runs a sequence next to a cluster of berth.
func (b *berth) sequence(ctx context.Context, what Sequence) (Output, error) {
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
	if !b.place.inSlurm() && what.Nodes > 1 {
		return Output{}, &Unsupported{"it needs a job of several hosts"}
	}
	argv := []string{b.place.Self, step.Arg, "--usage", "--", b.program, "run", "--quiet"}
	if !what.NoPods {
		argv = append(argv, "--image", archive)
	}
	argv = append(append(argv, b.options...), "--fast-path", b.fastPath(), "--", b.place.Self, step.SequenceArg, text)
	return b.place.runSequence(ctx, b.place.step(b.place.first(what.Nodes), argv))
}

// runSequence runs a sequence. It copies the counts and the MPI version in the sequence's
// result to the step. The case parses and checks the result itself.
func (p Place) runSequence(ctx context.Context, argv []string) (Output, error) {
	out, err := p.run(ctx, argv, "")
	var r sequence.Result
	if err == nil && json.Unmarshal([]byte(out.Stdout), &r) == nil {
		out.Step.Left, out.Step.MPI = r.Left, r.MPI
	}
	return out, err
}

// sequence runs a sequence here, in the job. The sequence starts its own steps.
func (b *bare) sequence(ctx context.Context, what Sequence) (Output, error) {
	if what.Job == sequence.Steps {
		return Output{}, &Unsupported{"it is measured in separate jobs: by the driver job"}
	}
	if what.Job == "" {
		return Output{}, &Unsupported{"bare metal has no cluster"}
	}
	text, err := what.spec(what.Job, "", b.place)
	if err != nil {
		return Output{}, err
	}
	return b.place.runSequence(ctx, []string{b.place.Self, step.SequenceArg, text})
}

// sequence runs a sequence beside the existing cluster.
func (k *kubeconfig) sequence(ctx context.Context, what Sequence) (Output, error) {
	if what.Cluster == "" {
		return Output{}, &Unsupported{"it is of the hosts, without a cluster"}
	}
	if what.MPI {
		return Output{}, &Unsupported{"the bench cannot bring the image with MPI into a given cluster"}
	}
	text, err := what.spec(what.Cluster, k.image, k.place, k.kubectl()...)
	if err != nil {
		return Output{}, err
	}
	argv := []string{k.place.Self, step.SequenceArg, text}
	if k.place.inSlurm() {
		// A step on the host sees the processes of the job.
		argv = slices.Concat(k.place.step(k.place.host(0), nil), []string{"env", "KUBECONFIG=" + os.Getenv("KUBECONFIG")}, argv)
	}
	return k.place.runSequence(ctx, argv)
}
