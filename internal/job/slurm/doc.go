// Package slurm reads the description of a job in the environment of its processes,
// and runs Slurm's commands for the few facts that are missing there.
//
// FromEnv starts no process and needs no Slurm installation. The package does not
// connect the tasks of a step (job/rendezvous), and does not plan a cluster
// (base/cluster).
//
// Read job.go first, which reads the environment of a job, with hostlist.go. ask.go
// runs Slurm's commands, and queue.go, moment.go, cpus.go and host.go use them.
// step.go and into.go make command lines of srun. check.go is for berth doctor, and
// pmi.go exchanges data between the tasks of a step.
package slurm
