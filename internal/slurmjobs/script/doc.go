// Package script makes the batch script and sbatch's options for an object. It decides which
// options an object may use: whoever can create objects may not be the user of the account.
//
// Build returns a job whose batch script runs the object's own script, unchanged, at most
// once. #SBATCH lines of the object's script become words on the command line of sbatch,
// after the same checks as options from other fields.
//
// The fields of objects belong to package kinds, and submission belongs to package queue.
//
// Read build.go first. directives.go reads #SBATCH lines, and allow.go checks options.
package script
