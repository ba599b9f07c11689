package pilots

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth.dev/berth/internal/elastic/plan"
	"berth.dev/berth/internal/elastic/wishes"
	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/job/slurm"
)

// Node describes how a pilot becomes a node.
type Node struct {
	// Berth is the path of the program on compute nodes, and JoinOptions holds the options of
	// 'berth join'.
	Berth       string
	JoinOptions []string
	// Dir is the working directory of the jobs. State is the folder that holds their scripts and
	// outputs.
	Dir, State string
	// Roles is the memory that berth needs on a node, in bytes. If the files of a node are in
	// memory, FilesShare is the divisor for the part of the job's memory that is kept for them.
	Roles, FilesShare int64
	FilesInMemory     bool
	// Partition names the partitions of jobs without an option that does. It may be empty.
	Partition string
	// Pods is the largest number of pods on a node.
	Pods int64
}

// leastMemory is the memory for pods of the smallest node, in bytes. Pods that request none need
// some, too.
const leastMemory = 512 << 20

// scriptVersion is the only version of the batch script of a pilot.
const scriptVersion = "1"

// outputName names the file with the output of a pilot, in its folder.
const outputName = "output"

// jobName returns the name of the pilots of a cluster in Slurm's queue.
func jobName(job string) string { return wishes.PilotName + job }

// job returns the job of a pilot.
func (n Node) job(job string, r record) queue.Job {
	return queue.Job{
		Options: n.options(job, r), Comment: "node for the pods of job " + job, Dir: n.Dir,
		Script: []byte("#!/bin/sh\n" + requestLine(r.Request) + "exec " + strings.Join(quoted(n.command(job, r)), " ") + "\n"),
	}
}

// command returns the command of a pilot.
func (n Node) command(job string, r record) []string {
	command := append([]string{n.Berth, "join", job}, n.JoinOptions...)
	if value := plan.ForValue(r.Only); value != "" {
		command = append(command, "--for="+value)
	}
	return command
}

// options returns the options of sbatch for a pilot.
func (n Node) options(job string, r record) []string {
	options := []string{
		"--job-name=" + jobName(job), "--output=" + filepath.Join(queue.Folder(n.State, r.UID), outputName),
		// The loop submits another one if pods need it.
		"--no-requeue",
		fmt.Sprintf("--nodes=%d", r.Nodes), "--ntasks-per-node=1",
		fmt.Sprintf("--cpus-per-task=%d", r.Size.MilliCPU/1000),
		fmt.Sprintf("--mem=%dM", n.jobMemory(r.Size.Memory)>>20),
	}
	gpus := int64(0)
	for name, count := range r.Size.Devices {
		if isGPU(name) {
			gpus += count
		}
	}
	if gpus > 0 {
		options = append(options, "--gpus-per-node="+strings.TrimPrefix(fmt.Sprintf("%s:%d", r.GPUType, gpus), ":"))
	}
	return append(options, r.Options...)
}

// round returns the room for pods on the node of a job, whose CPUs and MiB are whole.
func (n Node) round(size plan.Size) plan.Size {
	size.MilliCPU = 1000 * max(1, (size.MilliCPU+999)/1000)
	size.Memory = wholeMiB(max(size.Memory, leastMemory))
	size.Pods = max(size.Pods, n.Pods)
	return size
}

func wholeMiB(bytes int64) int64 { return (bytes + 1<<20 - 1) &^ (1<<20 - 1) }

// jobMemory returns the memory of a job with room for pods.
func (n Node) jobMemory(pods int64) int64 {
	memory := pods + n.Roles
	if n.FilesInMemory {
		memory = memory * n.FilesShare / (n.FilesShare - 1)
	}
	return wholeMiB(memory)
}

// podMemory returns the memory for pods on a host with an amount of memory.
func (n Node) podMemory(host int64) int64 {
	if n.FilesInMemory {
		host -= host / n.FilesShare
	}
	return max(0, host-n.Roles)
}

// isGPU reports whether berth offers a resource for GPUs of Slurm.
func isGPU(name corev1.ResourceName) bool {
	return slices.Contains([]corev1.ResourceName{"nvidia.com/gpu", "amd.com/gpu"}, name)
}

// quoted returns words for a shell.
func quoted(words []string) []string {
	all := make([]string, len(words))
	for i, word := range words {
		all[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return all
}

// partition returns the names of the partitions that options choose, or "".
func (n Node) partition(options []string) string {
	for _, option := range options {
		if list, ok := strings.CutPrefix(option, "--partition="); ok {
			return list
		}
	}
	return n.Partition
}

// largest returns the room for pods on the largest node of a partition. Which partition Slurm
// chooses by default is not known, so without a partition it is that of the partition whose
// largest node is the smallest.
func (n Node) largest(partitions []slurm.Partition, options []string) plan.Size {
	named := strings.FieldsFunc(n.partition(options), func(r rune) bool { return r == ',' })
	var least plan.Size
	for _, partition := range partitions {
		if !partition.Up || partition.NodeCPUs == 0 || len(named) > 0 && !slices.Contains(named, partition.Name) {
			continue
		}
		size := plan.Size{MilliCPU: 1000 * partition.NodeCPUs, Memory: n.podMemory(partition.NodeMemoryMB << 20), Pods: n.Pods}
		if least.MilliCPU == 0 {
			least = size
		}
		least.MilliCPU, least.Memory = min(least.MilliCPU, size.MilliCPU), min(least.Memory, size.Memory)
	}
	return least
}
