// Package wishes reads what a pod asks of Slurm, in the annotations of berth and of other systems
// that run pods on Slurm. It knows only the pod and the objects above it.
//
// Packages plan and pilots decide which pods share a job, and submit it.
//
// Read request.go first. dialects.go has the annotations, amount.go CPUs, memory and GPUs, and
// gang.go pods that need their nodes together.
package wishes
