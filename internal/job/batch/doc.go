// Package batch makes a batch job of a run: which words of a command line are
// sbatch's, the text of the script, its submission, and the wait for its end.
//
// It knows nothing of clusters or manifests. The caller passes the script's command and
// its input. Queries about the job of the current process belong to package slurm.
package batch
