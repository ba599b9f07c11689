package rundir

// Other processes find a run by its directory in memory, whose name is that of the
// run with PrivateSuffix, and by these files in it. Another version of berth may
// read them, so their names stay.
const (
	PrivateSuffix = "-private"
	// KubeconfigFile exists on the node with the API server, or on every node with
	// one of several control planes.
	KubeconfigFile = "kubeconfig"
	// ControlNodesFile exists on nodes with one of several control planes. It
	// contains the names of their hosts.
	ControlNodesFile = "doors"
	// HeadFile exists on the other nodes. It contains the name of the head.
	HeadFile = "head"
	// StandingFile exists on all nodes of a persistent cluster.
	StandingFile = "standing"
)
