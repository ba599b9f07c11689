package launch

import (
	"net"
	"os"
	"sync"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/launch/allocation"
	"berth.dev/berth/internal/launch/archive"
	"berth.dev/berth/internal/launch/identity"
	"berth.dev/berth/internal/launch/members"
	"berth.dev/berth/internal/launch/netrole"
	"berth.dev/berth/internal/launch/pulls"
	"berth.dev/berth/internal/launch/supervisor"
	"berth.dev/berth/internal/node/sandbox"
)

// node is this node of a cluster. Its methods are the steps that the head and all
// other nodes take. Each step sets fields for later steps.
type node struct {
	Options
	// allocation is nil outside Slurm.
	allocation *allocation.Allocation
	members    *members.Members
	// localMembers holds this host's further nodes. It is nil if there are none.
	// localConfig is their configuration, or that of this one.
	localMembers *members.Local
	localConfig  members.LocalConfig
	labels       map[string]string
	began        phases
	supervisor   *supervisor.Supervisor

	host      host
	dirs      directories
	published []netrole.Published // ports of this host that lead into the cluster
	named     *os.File            // held as long as the published ports have names
	ksiPort   uint16              // of a KSI script
	// saver is nil if the run saves no state. returning is set on a head that expects nodes of
	// other jobs from the previous one.
	saver     *stateSaver
	returning *continuity

	// archives are the head's archives, also on the other nodes, which receive
	// them from source.
	archives []archive.Archive
	source   archive.Source
	// importing is held during the import of archives.
	importing sync.Mutex

	plan        cluster.Plan
	pulls       pulls.Settings
	identities  identity.Set
	apiListener *os.File
	cgroup      *sandbox.Cgroup // nil if Slurm delegated none

	box *sandbox.Sandbox
	// watching is closed when the sandbox sends no more events.
	watching  chan struct{}
	switching *netrole.Held // nil without a Switch for connections of pods
	metrics   *net.UnixListener
}
