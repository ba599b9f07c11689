// Package batch makes a batch job of a run: which words of a command line are
// sbatch's, the text of the script, its submission, and the wait for its end.
//
// It knows nothing of clusters or manifests: what the script starts, and what
// it gives that to read, is handed to it. What a process finds out about the
// job that it is in belongs to package slurm.
package batch
