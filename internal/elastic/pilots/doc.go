// Package pilots submits Slurm jobs whose nodes join a cluster, for pods that the scheduler cannot
// place, and ends the jobs that no pod needs. Each job is a pilot, with a record in the cluster.
//
// Which pilots are needed is decided by package elastic/plan, and what a pod asks of Slurm by
// package elastic/wishes. How a node joins and leaves belongs to package launch/members.
//
// Read loop.go first. cluster.go makes the input of the plan, judge.go decides which pilots stay,
// advance.go brings one pilot from its record to its end, and record.go keeps the records.
package pilots
