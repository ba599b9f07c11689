// Package virtualnode simulates interLink's virtual node and API server for tests: it
// builds their requests for a pod, and derives the status of the pod from the replies. It
// follows pkg/virtualkubelet/execute.go and pkg/interlink/api/func.go in
// github.com/interlink-hq/interLink at commit f632175701d7, including their behaviour in
// states that they do not expect. Tests cannot import these, because the Go module proxy
// does not have their module.
//
// The kubelet's API and the mesh network do not belong to this package.
package virtualnode
