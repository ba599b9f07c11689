// Package proof decides how the hosts of a job step authenticate themselves to each
// other: by a key in the standard input of a step that berth starts, by keys in a
// folder, by munge, or by keys that Slurm's PMI exchanges. The protocol that uses
// the secrets belongs to rendezvous.
//
// Read proof.go first, then stepkey.go.
package proof
