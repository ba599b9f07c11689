// Package allocation holds what a run has and owes outside itself: the Slurm job
// that it runs in, the signals that end it, and the time that the workload then
// has to end. Outside Slurm, the job is nil. How a workload is asked to end does
// not belong here.
//
// Read allocation.go first, then signal.go. stepd.go notices the loss of
// slurmstepd, and cpus.go and labels.go describe the node for pods.
package allocation
