// Package queue submits batch jobs for objects of another system, exactly one job for each
// object, and follows them to their end. An object is known by its UID.
//
// One squeue per interval serves all jobs. A job is submitted held, and carries the UID in
// its comment and in the path of its script, so that Find finds it although the answer of
// sbatch was lost. The caller stores the job's number and then calls Release. The folder of
// an object, see Folder, holds the batch script and what the batch script records.
//
// The package knows nothing of Kubernetes. Batch scripts and the options that an object may
// use belong to package slurmjobs/script. The wait of `berth submit` for a single job belongs
// to package batch.
//
// Read client.go first. submit.go hands jobs to Slurm, squeue.go and sacct.go ask for them,
// record.go reads the records of batch scripts, and state.go puts the answers together.
package queue
