// Package interlink serves the plugin API of interLink, so that the virtual node of
// an existing Kubernetes sends its pods to a berth cluster.
//
// interLink has two APIs in a chain: the virtual node calls interLink's API server,
// which calls a plugin. The requests differ only in the body of /create, so the
// server here takes both: from interLink's API server over a unix socket, and from
// the virtual node directly over mutual TLS, which interLink's API server cannot
// speak to a plugin.
//
// The server keeps no state. The name of a pod in the berth cluster follows from its
// name and UID in the foreign cluster, so a repeated /create creates nothing twice.
// For each status it queries the API server of the berth cluster. interLink stores
// the JobID that /create returns in an annotation; it names the cluster.
//
// Read in this order:
//
//   - wire.go: the requests and replies
//   - translate.go, volumes.go and environment.go: from a foreign pod to one here
//   - create.go and status.go: the pods in the cluster
//   - connection.go: the cluster, which may end and be replaced
//   - server.go and listen.go: HTTP
//
// How a cluster is found does not belong here: the caller passes a Finder.
package interlink
