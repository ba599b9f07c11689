// Package allocation holds the Slurm job of a run, the signals that end the run,
// and the time that the workload then gets. Outside Slurm, the job is nil. The
// requests to pods and commands to end do not belong here.
//
// Read allocation.go first, then signal.go. stepd.go notices the loss of
// slurmstepd, and cpus.go and labels.go describe the node for pods.
package allocation
