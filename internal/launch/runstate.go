package launch

import (
	"net"
	"os"
	"path/filepath"
	"sync"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/programs"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/kube/lease"
	"berth.dev/berth/internal/kube/workload"
	"berth.dev/berth/internal/launch/archive"
	"berth.dev/berth/internal/launch/command"
	"berth.dev/berth/internal/launch/identity"
	"berth.dev/berth/internal/launch/members"
	"berth.dev/berth/internal/launch/netrole"
	"berth.dev/berth/internal/launch/pulls"
	"berth.dev/berth/internal/launch/supervisor"
	"berth.dev/berth/internal/node/sandbox"
)

// run is the state of one run. Each step sets fields for later steps, and
// takeDown undoes the steps that have begun.
type run struct {
	Options
	ending
	start   steps
	objects []workload.Object
	began   phases
	// archives are the head's archives, also on the other nodes, which receive
	// them from source.
	archives []archive.Archive
	source   archive.Source
	// importing is held during the import of archives.
	importing  sync.Mutex
	supervisor *supervisor.Supervisor
	members    *members.Members
	// localMembers holds this host's further nodes. It is nil if there are none.
	// localConfig is their configuration, or that of this one.
	localMembers *members.Local
	localConfig  members.LocalConfig
	labels       map[string]string

	host        host
	scratch     *rundir.Dir // on disk
	private     *rundir.Dir // in memory, for the user's kubeconfig
	saver       *stateSaver
	restored    *sandbox.File             // the state of an earlier cluster
	control     *persistent.ControlSocket // of a persistent cluster
	plan        cluster.Plan
	pulls       pulls.Settings
	identities  identity.Set
	apiListener *os.File
	published   []netrole.Published // ports of this host that lead into the cluster
	named       *os.File            // held as long as the published ports have names
	ksiPort     uint16              // of a KSI script
	box         *sandbox.Sandbox
	switching   *netrole.Held   // nil without a Switch for connections of pods
	cgroup      *sandbox.Cgroup // nil if Slurm delegated none
	metrics     *net.UnixListener
	client      *workload.Client
	kubeconfig  []byte // the kubeconfig of client
	// monitor is set on the head of a run on several nodes.
	monitor *members.Monitor
	// lease and progress are set if another node may lead the run after this one.
	lease    *lease.Lease
	progress *workload.Progress
	// watching is closed when the sandbox sends no more events.
	watching chan struct{}
}

// makeTools makes kubectl and helm available to the command.
func (r *run) makeTools() (command.Tools, error) {
	t := command.Tools{
		Kubeconfig: r.kubeconfigPath(),
		Cache:      filepath.Join(r.scratch.Path, "tmp", "kubectl"),
		Bin:        filepath.Join(r.private.Path, "bin"),
	}
	return t, exitcode.Wrap(exitcode.NoSpace, programs.LinkTools(t.Bin))
}
