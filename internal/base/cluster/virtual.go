package cluster

// NotASlurmJob is the reason in the status of a pod that failed because it was bound to the Node of a
// Slurm partition.
const NotASlurmJob = "NotASlurmJob"

// A Node that stands for a Slurm partition has the label of virtual kubelets. WLM-Operator gave it
// to its Nodes.
const (
	VirtualLabel = "type"
	VirtualValue = "virtual-kubelet"
)

// ManagedByLabel has the value SlurmJobsManager at Nodes of Slurm partitions, and at pods that show
// Slurm jobs.
const (
	ManagedByLabel   = "app.kubernetes.io/managed-by"
	SlurmJobsManager = "berth-slurm-jobs"
)

// PartitionOwner is an annotation of Nodes of Slurm partitions and of their leases. It names the
// namespace of the controller's lease.
const PartitionOwner = "berth.dev/slurm-jobs"

// IsVirtual reports whether a Node with these labels stands for something that runs no pods, such
// as a Slurm partition.
func IsVirtual(labels map[string]string) bool { return labels[VirtualLabel] == VirtualValue }

// ShowsSlurmJob reports whether a pod with these labels runs no program, but shows a Slurm job.
func ShowsSlurmJob(labels map[string]string) bool { return labels[ManagedByLabel] == SlurmJobsManager }
