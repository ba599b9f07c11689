// Package jobend is the far end of a tunnel, on a node of a job: it finds the
// cluster that this user runs there, hands its credentials out, and connects to
// its API server. It is started by a step of Slurm's, and starts nothing.
package jobend
