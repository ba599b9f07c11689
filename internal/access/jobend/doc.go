// Package jobend is the far end of a tunnel, on a node of a job. It finds the
// user's cluster there, returns its credentials, and connects to its API server.
// A Slurm step starts it; it starts no process.
package jobend
