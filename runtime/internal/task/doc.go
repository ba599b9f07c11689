// Package task is the task service of a pod's shim: containerd's service for runc,
// with additions for an unprivileged node. It adapts specifications before runc
// sees them. If no cgroup was delegated, it enforces memory limits, answers
// statistics and ends stragglers from /proc.
//
// Read service.go first: a container's creation. view.go, cpus.go, shield.go and
// fastpath.go change what a container is started with. update.go and stats.go answer
// later calls. meter.go measures the memory of containers, and end.go ends those above
// their limit, and stragglers. notices.go reports to a pod's owner what was changed.
package task
