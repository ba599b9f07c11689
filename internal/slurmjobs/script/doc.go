// Package script makes the batch script and sbatch's options for an object. It decides which
// options an object may use: the job runs as the user of the controller, and somebody else may
// have created the object.
//
// Build returns a job whose batch script, guard.sh, runs the object's own script unchanged, and
// in at most one job. #SBATCH lines of the object's script become options on the command line
// of sbatch, after the same checks as options from other fields.
//
// The fields of objects belong to package kinds, and submission belongs to package queue.
//
// Read build.go first. directives.go reads #SBATCH lines, and allow.go checks options.
package script
