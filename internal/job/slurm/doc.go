// Package slurm reads what Slurm tells a process about its job, and asks
// Slurm's commands for the little that the environment does not say.
//
// FromEnv forks nothing and needs no Slurm installation. How the tasks of a
// step find each other is not here, nor what a cluster makes of an allocation.
//
// Read job.go first, what the environment says of a job, with hostlist.go. ask.go
// runs Slurm's commands. queue.go, moment.go, cpus.go and host.go are questions to
// them; step.go and into.go make command lines of srun; check.go is for berth
// doctor, and pmi.go exchanges data between the tasks of a step.
package slurm
