// Package command runs the user's command beside a cluster, on the host.
//
// Between the run and the command is a process of this program, the command's
// parent. It adopts all that the command leaves behind, and ends it. The variables
// that describe the cluster belong to the callers.
//
// Read command.go first, then parent.go.
package command
