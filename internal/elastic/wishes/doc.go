// Package wishes reads what a pod asks of Slurm, in the annotations of berth and of other systems
// that run pods on Slurm. It knows only the pod and the objects above it.
//
// Which pods share a job, and when one is submitted, belongs to the loop that submits pilots.
//
// Read request.go first. dialects.go has the annotations, amount.go CPUs, memory and GPUs, and
// gang.go pods that need their nodes together.
package wishes
