package sandbox

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
)

// Arguments that make the program a janitor or init. The main function of berth-sandbox
// calls Janitor and Init then.
const (
	JanitorArg = "sandbox-janitor"
	InitArg    = "sandbox-init"
)

// Descriptors that the janitor and init inherit.
const (
	lifelineFD = 3 // janitor: a byte when the id maps are written, end of file when the supervisor is gone
	configFD   = 4 // memory file with a Config
	controlFD  = 5 // packet socket to the supervisor
	lockFD     = 6 // the run directory's lock, held until the janitor ends
	programFD  = 7 // the program of a janitor that starts no init
)

// Config describes a sandbox.
type Config struct {
	// Program is the path of berth-sandbox, which the janitor and init execute.
	Program  string
	Hostname string
	IDMap    IDMap
	// Run is the mount point of the tmpfs for keys and sockets (below /run).
	Run string
	// Keep lists directories of the host that must stay visible below a
	// directory that the sandbox covers (/run, /var/log).
	Keep []string
	// Binds maps mount points inside to the directories to bind there. Parents
	// that do not exist on the host are made on a tmpfs.
	Binds map[string]string
	// Files are written before any process starts; the keys are paths.
	Files map[string]File
	// Socket is the path of a unix socket where init listens; another process
	// serves it. Empty for none.
	Socket string
	// ResolvConf is the path of the file that covers /etc/resolv.conf.
	ResolvConf string
	Network    Network
	// Cgroup is the group of the run, made by MakeCgroup; empty where none
	// was delegated. The janitor removes it.
	Cgroup string
	// Log receives the messages of the janitor and init.
	Log string
	// Remove lists directories of the host that the janitor removes at the end.
	Remove []string
	// Prune lists directories of the host that the janitor then removes if they
	// are empty.
	Prune []string
}

// File is a small file on the sandbox's tmpfs.
type File struct {
	Mode    os.FileMode
	Content []byte
}

// Network describes what init sets up in the network namespace.
type Network struct {
	// NodeLink is a bridge without ports that carries NodeAddresses.
	NodeLink      string
	NodeAddresses []netip.Prefix
	// EgressLink is the TUN device of the default routes; Gateway is its far
	// end.
	EgressLink string
	MTU        int
	Gateway    netip.Addr
	// Sources are the source addresses of the node's own packets, one per IP
	// family.
	Sources []netip.Addr
	// Overlay is the device towards the other nodes; nil on a single node.
	Overlay *Overlay
	// Listen is the address of the API server's listener.
	Listen netip.AddrPort
	// ListenOutside is the address of a listener for a program outside the sandbox, whose
	// clients are inside. If it is invalid, there is none.
	ListenOutside netip.AddrPort
}

// Overlay is a TUN device with one queue for each thread that will serve it. Packets
// to Routes leave through it.
type Overlay struct {
	Link   string
	Queues int
	MTU    int
	Routes []netip.Prefix
}

// IDMap maps user and group ids into the sandbox, and names the setuid programs
// that may write the map. Id 0 inside is the user.
type IDMap struct {
	UIDs, GIDs           []IDRange
	NewUIDMap, NewGIDMap string
}

// IDRange maps Count ids beginning with Inside to ids beginning with Outside.
type IDRange struct {
	Inside, Outside, Count uint32
}

// oneUID reports whether the map has no subordinate ids, so that everything
// inside belongs to the user.
func (m IDMap) oneUID() bool { return len(m.UIDs) <= 1 || len(m.GIDs) <= 1 }

func readConfig(file io.ReaderAt) (Config, error) {
	var config Config
	if err := json.NewDecoder(io.NewSectionReader(file, 0, 1<<30)).Decode(&config); err != nil {
		return Config{}, fmt.Errorf("read sandbox configuration: %w", err)
	}
	return config, nil
}
