// Package queue submits batch jobs for objects of another system, exactly one job for each
// object, and reports their states until they have ended. A UID identifies an object.
//
// One call of squeue per interval serves all jobs. A job is submitted held. It carries the
// UID in its comment and in the path of its script, so Find finds the job even if the answer
// of sbatch was lost. The caller stores the job's number and then calls Release. The folder
// of an object, see Folder, holds the batch script and the files that it writes.
//
// The package knows nothing of Kubernetes. Batch scripts and the options that an object may
// use belong to package slurmjobs/script. Package batch waits for the job of `berth submit`.
//
// Read client.go first. submit.go submits jobs, squeue.go and sacct.go read their states from
// Slurm, record.go reads the records of batch scripts, and state.go combines all three.
package queue
