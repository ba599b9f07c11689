package rundir

// Other processes find a run by its directory in memory and by these files in it.
// The directory has the run's name with PrivateSuffix. Another version of berth may
// read the files, so their names never change.
const (
	PrivateSuffix = "-private"
	// KubeconfigFile exists on the node with the API server, or on every node with
	// one of several control planes.
	KubeconfigFile = "kubeconfig"
	// ControlNodesFile exists on nodes with one of several control planes. It
	// contains the names of their hosts.
	ControlNodesFile = "control-nodes"
	// HeadFile exists on the other nodes. It contains the name of the head.
	HeadFile = "head"
	// PersistentFile exists on all nodes of a persistent cluster.
	PersistentFile = "persistent"
)
