// Package interlink serves the plugin API of interLink: the virtual node of another
// Kubernetes cluster sends its pods, and they run in a berth cluster. In this package,
// a foreign name, pod or namespace is one in the other cluster, and a local one is its
// counterpart in the berth cluster.
//
// interLink has two APIs in a chain: the virtual node calls interLink's API server,
// which calls a plugin. The requests differ only in the body of /create, so the
// server of this package accepts both: from interLink's API server over a unix socket,
// and from the virtual node directly over mutual TLS. interLink's API server calls
// plugins only over a unix socket or without TLS.
//
// The server keeps no state. The local name of a pod follows from its foreign name and
// UID, so a repeated /create creates nothing twice. For each status, the server queries
// the API server of the berth cluster. interLink stores the JobID that /create returns
// in an annotation of the foreign pod. The JobID names the berth cluster.
//
// Read in this order:
//
//   - wire.go: requests and replies
//   - translate.go, volumes.go and environment.go: from a foreign pod to a local one
//   - create.go and status.go: the pods in the cluster
//   - connection.go: the cluster, which may end and be replaced
//   - server.go and listen.go: HTTP
//
// Finding a cluster does not belong to this package: the caller passes a Finder.
package interlink
