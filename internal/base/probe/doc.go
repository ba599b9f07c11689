// Package probe finds out what a machine allows an unprivileged user to do,
// and what a job may use of it.
//
// There are two kinds of questions. Decisions (Memory, CPUs, IDMap, Cgroup,
// StateDir, RootIsRootfs) are what a start acts on: they only read, fork
// nothing and take well under two milliseconds together. Trials make real
// namespaces, mounts and devices in a child process; `berth doctor` runs them,
// and so does a failed start that wants to say why it failed.
//
// The package reports; it changes nothing that outlives it, prints nothing,
// and knows neither Slurm's commands nor Kubernetes.
package probe
