// Package tunnel carries connections into a running job over the one stream
// that there is: the standard input and output of a job step. The near end is
// on the login host, the far end on the node with the cluster's API server.
//
// It knows nothing of Slurm, nor how a cluster is found: the far end is given a
// function for that. What travels through the connections is TLS from end to
// end, so the stream itself need not be secret; the user's key, which the near
// end asks for, is sealed to a key of the near end's.
package tunnel
