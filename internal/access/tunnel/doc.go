// Package tunnel carries connections into a running job over the only stream that
// exists: the standard input and output of a job step. The near end is on the login
// host, the far end on the node with the cluster's API server.
//
// It neither uses Slurm nor searches for clusters: the caller passes a function
// that finds the cluster. The connections carry TLS from end to end, so the stream
// itself need not be secret. The near end requests the user's key, and the far end
// encrypts it to a key of the near end.
package tunnel
