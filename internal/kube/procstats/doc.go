// Package procstats measures containers, pods and the node from /proc and
// answers the kubelet as cAdvisor does, for a node where no cgroup accounts
// for anything. One pass over /proc serves all questions of about a second.
// Enforcing limits does not belong here: the shim does that.
package procstats
