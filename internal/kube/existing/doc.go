// Package existing uses a namespace of a Kubernetes cluster that berth has not started:
// what a run needs there, who owns what it applies, and where its pods may run. Applying
// and following belong to package workload, and the Slurm job to package launch.
package existing
