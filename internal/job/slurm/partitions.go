package slurm

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Partition is a partition as sinfo shows it.
type Partition struct {
	Name string
	// Up reports whether the partition starts jobs.
	Up bool
	// MaxTime is the longest time limit of a job, and MaxNodes its largest number of nodes.
	// Both are negative if there is no limit.
	MaxTime  time.Duration
	MaxNodes int64
	// Nodes, CPUs and MemoryMB are the sizes of the whole partition. FreeCPUs and
	// FreeMemoryMB are the parts that no job has, on nodes with a free CPU.
	Nodes, CPUs, FreeCPUs, MemoryMB, FreeMemoryMB int64
	// NodeCPUs and NodeMemoryMB are the sizes of the largest node.
	NodeCPUs, NodeMemoryMB int64
}

// partitionFormat names columns of sinfo and their widths. No value contains a space. The option
// --Format (-O) has a column for allocated memory, which --format lacks.
const partitionFormat = "PartitionName:128,Available:16,Time:24,Size:32,Nodes:12,CPUs:12,Memory:20,AllocMem:20,CPUsState:60"

// Partitions returns the partitions that the user may see, in the order of sinfo. It asks the
// controller once.
func Partitions(ctx context.Context, ask Ask) ([]Partition, error) {
	// With --exact, the nodes of a line have equal values.
	output, err := ask(ctx, "sinfo", "--noheader", "--exact", "--Format="+partitionFormat)
	if err != nil {
		return nil, err
	}
	var all []Partition
	index := map[string]int{}
	for line := range strings.Lines(string(output)) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		part, err := parsePartition(line)
		if err != nil {
			return nil, err
		}
		i, known := index[part.Name]
		if !known {
			index[part.Name] = len(all)
			all = append(all, part)
			continue
		}
		sum := &all[i]
		sum.Nodes += part.Nodes
		sum.CPUs += part.CPUs
		sum.FreeCPUs += part.FreeCPUs
		sum.MemoryMB += part.MemoryMB
		sum.FreeMemoryMB += part.FreeMemoryMB
		sum.NodeCPUs, sum.NodeMemoryMB = max(sum.NodeCPUs, part.NodeCPUs), max(sum.NodeMemoryMB, part.NodeMemoryMB)
	}
	return all, nil
}

// parsePartition parses a line of sinfo, which describes nodes of a partition.
func parsePartition(line string) (Partition, error) {
	fields := strings.Fields(line)
	if len(fields) != strings.Count(partitionFormat, ",")+1 {
		return Partition{}, fmt.Errorf("read the line %.200q of sinfo: %d fields, not %d", line, len(fields), strings.Count(partitionFormat, ",")+1)
	}
	numbers := make([]int64, len(fields))
	for i, field := range fields {
		numbers[i], _ = strconv.ParseInt(field, 10, 64) // 0 for text, and for N/A of a partition without nodes
	}
	part := Partition{Name: fields[0], Up: fields[1] == "up", MaxTime: -1, MaxNodes: -1, Nodes: numbers[4], NodeCPUs: numbers[5], NodeMemoryMB: numbers[6]}
	if limit, ok := parseSpan(fields[2]); ok {
		part.MaxTime = limit
	}
	// The size is a number, or a range such as 1-4 and 1-infinite.
	_, most, ranged := strings.Cut(fields[3], "-")
	if !ranged {
		most = fields[3]
	}
	if limit, err := strconv.ParseInt(most, 10, 64); err == nil {
		part.MaxNodes = limit
	}
	part.MemoryMB = part.Nodes * part.NodeMemoryMB
	// CPUs are allocated, idle, other and total. Idle ones of nodes that take no jobs are
	// other ones.
	cpus := strings.Split(fields[8], "/")
	if len(cpus) == 4 {
		part.FreeCPUs, _ = strconv.ParseInt(cpus[1], 10, 64)
		part.CPUs, _ = strconv.ParseInt(cpus[3], 10, 64)
	}
	if part.FreeCPUs > 0 {
		part.FreeMemoryMB = max(0, part.MemoryMB-part.Nodes*numbers[7])
	}
	return part, nil
}
