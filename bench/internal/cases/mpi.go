package cases

import (
	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/sequence"
	"berth.dev/berth/bench/internal/system"
)

// launcher returns the parameter that selects how MPI programs are started in a plain
// job. Records of trials in pods have it too, although pods always use mpirun.
func launcher() plan.Parameter {
	return plan.Parameter{Name: "hosts-launcher", Default: "srun", Help: "srun (by PMIx) or mpirun, in a plain job; in pods it is mpirun", Check: plan.OneOf("srun", "mpirun")}
}

// mpiCase returns a case for an MPI program with one process on each node.
func mpiCase(kind plan.Kind, job, cluster string, more ...plan.Parameter) Case {
	kind.Hosts, kind.HostsFor = 1, hostsFor
	kind.Parameters = append([]plan.Parameter{hosts("2"), launcher()}, more...)
	return Case{
		Kind: kind,
		Task: func(p map[string]string, _, _ int) (system.Task, error) {
			return system.Task{Connects: true, Sequence: &system.Sequence{Job: job, Cluster: cluster, Nodes: hostsFor(p), Parameters: p, MPI: true}}, nil
		},
		Read: func(_ map[string]string, out system.Output) ([]record.Value, error) {
			r, err := readSequence(out)
			return r.Values, err
		},
	}
}

// mpiInit returns the case for the lower half of figure 2 of the pcocc paper.
func mpiInit() Case {
	return mpiCase(plan.Kind{
		Name: "mpi-init", Summary: "steps of a program that does MPI_Init, one after the other: on the hosts or in pods",
		Seconds: func(p map[string]string) float64 { return 5 + 0.4*number(p, "steps") },
	}, sequence.MPISteps, sequence.MPIPods, plan.Parameter{Name: "steps", Default: "50", Help: "in one trial", Check: positive})
}

// hpl returns the case for figure 3 of the pcocc paper.
func hpl() Case {
	return mpiCase(plan.Kind{
		Name: "hpl", Summary: "HPL by Debian's hpcc, one process on each node; STREAM, PTRANS and FFT of hpcc stand for HPCG",
		Seconds: func(p map[string]string) float64 {
			n := number(p, "size") / 1000
			return 1 + n*n*n // the time of all hpcc tests grows like HPL's
		},
	}, sequence.HPCCJob, sequence.HPCCPods, plan.Parameter{Name: "size", Default: "2000", Help: "of the matrix", Check: positive})
}

// steps returns the case for the time of a job step. It also measures steps in a second
// job, which does not use the system under test.
func steps() Case {
	return Case{
		Kind: plan.Kind{
			Name: "steps", Summary: "srun of a short program, alternately in a job of the system and in one without it, for systems of the driver job",
			Hosts: 1, HostsFor: hostsFor,
			Parameters: []plan.Parameter{
				hosts("2"),
				{Name: "pairs", Default: "50", Help: "number of pairs: a step in each of the two jobs", Check: positive},
				{Name: "program", Default: "true", Help: "the command of a step, its words separated by blanks", Check: given},
			},
			Seconds: func(p map[string]string) float64 { return 1 + 0.08*number(p, "pairs") },
		},
		Task: func(p map[string]string, _, _ int) (system.Task, error) {
			return system.Task{Sequence: &system.Sequence{Job: sequence.Steps, Nodes: hostsFor(p), Parameters: p}}, nil
		},
		Read: func(_ map[string]string, out system.Output) ([]record.Value, error) {
			r, err := readSequence(out)
			return r.Values, err
		},
	}
}
