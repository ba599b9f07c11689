// Package virtualnode does what interLink's virtual node and its API server do with a
// pod, for tests: it assembles the requests and derives the pod's status from the
// replies. It follows pkg/virtualkubelet/execute.go and pkg/interlink/api/func.go in
// github.com/interlink-hq/interLink at commit f632175701d7, including what those do
// with states that they do not expect. Their module is not on the Go module proxy.
//
// It does not serve the kubelet's API, and has no mesh network.
package virtualnode
