// Package workload takes a user's manifests to their result: it reads them,
// applies them, follows the logs of what runs to an end, notices what can never
// start, and derives the exit code. It speaks to any Kubernetes API server and
// knows nothing of how this one came about.
package workload
