// Package login connects a login host to the clusters of running jobs. It finds the
// job that the user means, and keeps one tunnel per job open in a separate process
// that all commands share. If there is no tunnel, it reports the reason.
//
// It does not decide what a command does with the cluster.
//
// Read session.go first, the commands' side of a tunnel; resolve.go finds the job.
// tunnelserver.go and watch.go are the process that keeps the tunnel; place.go has
// the protocol between the two. enter.go and step.go open the tunnel.
package login
