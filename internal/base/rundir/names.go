package rundir

// What others find a run by: its directory in memory, which has the name of the
// run and PrivateSuffix, and files in it.
const (
	PrivateSuffix = "-private"
	// KubeconfigFile exists on the node with the API server, or on every node
	// that may lead the run; the latter have its names in DoorsFile.
	KubeconfigFile = "kubeconfig"
	DoorsFile      = "doors"
	// HeadFile is there on the others, and holds the first node's name.
	HeadFile = "head"
	// StandingFile is there on all nodes of a cluster that stays until it is
	// told to end.
	StandingFile = "standing"
)
