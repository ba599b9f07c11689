// Package login is what reaches from a login host into the clusters of running
// jobs: it finds the job that is meant, keeps one tunnel per job open in a
// process of its own that all commands share, and says what is wrong where
// there is none.
//
// What is done with a cluster once it can be reached does not belong here.
package login
