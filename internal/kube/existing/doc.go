// Package existing prepares a run in one namespace of a Kubernetes cluster that berth did not
// start. It checks the rights of the user, creates the Job that owns the run's objects, and
// restricts pods to the hosts of a Slurm job. Applying and following objects belongs to
// package workload, and the Slurm job to package launch.
package existing
