// Package probe finds out what a machine allows an unprivileged user to do, and
// what a job may use of it.
//
// It asks two kinds of questions. A start acts on decisions (Memory, CPUs,
// IDMap, Cgroup, StateDir, rootIsRootfs). They only read, fork nothing and take
// well under two milliseconds together. Trials make real namespaces, mounts and
// devices in a child process. `berth doctor` runs them, and so does a failed
// start, to find the reason.
//
// The package changes nothing that outlives it and prints nothing. It knows
// neither Slurm's commands nor Kubernetes.
//
// Read result.go and host.go first, then examine.go, which lists the probes in
// order. Files named check*.go turn decisions into results; files named
// trial*.go run the trials.
package probe
