// Package slurm reads what Slurm tells a process about its job, and asks
// Slurm's commands for the little that the environment does not say.
//
// FromEnv forks nothing and needs no Slurm installation. How the tasks of a
// step find each other is not here, nor what a cluster makes of an allocation.
package slurm
