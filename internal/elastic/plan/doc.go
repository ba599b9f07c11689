// Package plan decides which pilots a cluster needs for the pods that wait. A pilot is a Slurm job
// whose nodes join the cluster.
//
// The package is pure: it reads objects of Kubernetes and calls nothing. What a pod asks of Slurm
// belongs to package elastic/wishes, and the submission of pilots to package elastic/pilots.
//
// Read plan.go first. size.go has amounts of resources, and fit.go the rules of the scheduler that
// decide whether a pod may run on a node.
package plan
