// Package workload takes a user's manifests to their result: it reads them,
// applies them, follows the logs of its pods, notices pods that can never start, and derives the exit code. It works with any
// Kubernetes API server, however its cluster was started.
//
// Read in this order:
//
//   - parse.go (with place.go), check.go and checkpods.go: manifests
//   - client.go, apply.go, remove.go, record.go, images.go and token.go: objects in
//     the cluster
//   - target.go, owners.go and follow.go: from objects to a result
//   - logs.go, nodelog.go, stream.go, timestamps.go and selection.go: the output
//   - stuck.go, reasons.go, taints.go, references.go and remedies.go: pods that
//     never start
//   - pulls.go: reports of pulls that take long
//   - drain.go: the end of all pods
//
// token.go and images.go are for other packages: the token of an administrator, and
// the images of manifests.
package workload
