package podcni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
)

// link is the name of the interface in a pod.
const link = "eth0"

// limit bounds the total time that the plugins of a list may take to connect or
// disconnect a pod. It is shorter than the time that a step waits for its network.
const limit = 10 * time.Second

// Pod is a pod on this node.
type Pod struct {
	// ID is unique among all pods, on all nodes and for all time.
	ID string
	// Namespace is the path of its network namespace.
	Namespace string
	// Owner is passed to plugins that have the capability "berth".
	Owner Owner
	// Again makes Apply try once more after a failure, even if nothing has changed.
	Again bool
}

// Owner identifies the user of a pod. Network is a number for each user, or for each
// group of users who share a network. Plugins may use it as a VLAN or a key.
type Owner struct {
	User    string `json:"user"`
	UID     uint32 `json:"uid"`
	Job     uint32 `json:"job,omitempty"`
	Network uint32 `json:"network"`
}

// Network runs a list of plugins and tracks the pods that they have connected.
type Network struct {
	list *libcni.NetworkConfigList
	cni  *libcni.CNIConfig
	// dir survives a reboot, as the state of plugins does.
	dir string

	// limit is the constant of that name, or shorter in a test.
	limit time.Duration
	// ended is called when Apply has a new outcome to return.
	ended func()

	mu sync.Mutex
	// attempts holds the attempts to connect wanted pods, and removals the removals of
	// pods that are no longer wanted. Both are keyed by the pod's ID.
	attempts map[string]*attempt
	removals map[string]*removal
	// abandoned holds attempts that were canceled and may still be running.
	abandoned map[string]*attempt
}

// Open reads a list of plugins. It checks that all of its plugins exist and that only
// root can write them. dir is the directory where requests to the plugins are
// recorded. ended is called, on any goroutine, when a pod is no longer pending, and
// must not block. Apply then returns that pod's outcome.
func Open(ctx context.Context, list string, plugins []string, dir string, ended func()) (*Network, error) {
	n := &Network{dir: dir, limit: limit, ended: ended, attempts: map[string]*attempt{}, removals: map[string]*removal{}, abandoned: map[string]*attempt{}, cni: libcni.NewCNIConfigWithCacheDir(plugins, dir, newProgram())}
	text, err := os.ReadFile(list)
	if err != nil {
		return nil, fmt.Errorf("read list of CNI plugins: %w: correct 'cni.list' in the configuration", err)
	}
	if n.list, err = libcni.NetworkConfFromBytes(text); err != nil {
		return nil, fmt.Errorf("read list of CNI plugins %s: %w", list, err)
	}
	if err := rootsAlone(list, plugins); err != nil {
		return nil, fmt.Errorf("check list of CNI plugins %s: %w", list, err)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if _, err := n.cni.ValidateNetworkList(ctx, n.list); err != nil {
		return nil, fmt.Errorf("check list of CNI plugins %s: %w: install them in a directory of 'cni.plugins'", list, err)
	}
	if err := usable(n.list); err != nil {
		return nil, fmt.Errorf("check list of CNI plugins %s: %w", list, err)
	}
	return n, nil
}

// usable returns an error for a list without plugins, with an invalid name, or of a
// version before 0.4.0. Plugins of older versions have no CHECK, and their DEL does
// not receive the result of ADD.
func usable(list *libcni.NetworkConfigList) error {
	if len(list.Plugins) == 0 {
		return errors.New("it has no plugins: write them as a list, plugins: [...]")
	}
	if err := utils.ValidateNetworkName(list.Name); err != nil {
		return err
	}
	// An empty version means 0.1.0.
	recent, err := version.GreaterThanOrEqualTo(list.CNIVersion, "0.4.0")
	if err != nil {
		return err
	}
	if !recent {
		return fmt.Errorf("cniVersion %q: choose 0.4.0 or newer", list.CNIVersion)
	}
	return nil
}

// attachment is the record of a pod. It is written before the pod's first plugin
// starts and removed after the last one has undone its work. So it also exists for a
// pod that was never fully connected, and for a pod whose namespace a power failure
// has destroyed. libcni keeps the result.
type attachment struct {
	Namespace string          `json:"namespace"`
	Owner     Owner           `json:"owner"`
	List      json.RawMessage `json:"list"`
}

// Outcome is the state of a pod after Apply.
type Outcome struct {
	// Pending reports whether plugins are still running. Then no other field is set.
	Pending bool
	// Address is the pod's address if Err is nil.
	Address netip.Addr
	// Changed reports whether plugins have just connected the pod.
	Changed bool
	// Checked reports whether plugins were asked if the connection still exists.
	Checked bool
	Err     error
	// Gone reports whether the pod could not be connected, so that an earlier connection
	// is gone, too.
	Gone bool
}

// Apply connects exactly these pods. It may be called at any time and in any state:
// the next call completes what this one did not. With check, it asks plugins whether
// their connections still exist, and repairs any that do not. Apply does not wait for
// plugins that connect, so a plugin that hangs affects only its own pod. A failure to
// connect a pod is in that pod's outcome. The error is about pods that are no longer
// wanted; Apply waits for those only briefly.
func (n *Network) Apply(ctx context.Context, pods []Pod, check bool) (map[string]Outcome, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := os.MkdirAll(n.file(""), 0o700); err != nil {
		return nil, fmt.Errorf("make directory of CNI's results: %w", err)
	}
	wanted := map[string]Pod{}
	for _, pod := range pods {
		wanted[pod.ID] = pod
	}
	n.abandon(func(id string) bool { _, stays := wanted[id]; return !stays })
	entries, err := os.ReadDir(n.file(""))
	if err != nil {
		return nil, fmt.Errorf("list pods that CNI has connected: %w", err)
	}
	var problems []error
	var gone []string
	// inUse holds the namespaces that may contain an interface of a pod that stays.
	inUse := map[string]bool{}
	for _, entry := range entries {
		pod, stays := wanted[entry.Name()]
		switch {
		case strings.HasPrefix(entry.Name(), unfinished):
			if n.attempts[strings.TrimPrefix(entry.Name(), unfinished)] == nil {
				// The process that wrote it was killed.
				problems = append(problems, os.Remove(n.file(entry.Name())))
			}
		case stays:
			inUse[pod.Namespace] = true
		default:
			gone = append(gone, entry.Name())
		}
	}
	// Remove pods first: their addresses may be needed.
	problems = append(problems, n.removeAll(ctx, gone, inUse))
	n.interrupt(wanted)
	outcomes := map[string]Outcome{}
	for id, pod := range wanted {
		outcomes[id] = n.outcome(ctx, pod, check)
	}
	return outcomes, errors.Join(problems...)
}

// unfinished is the prefix of a file that is being written. No pod's ID begins with
// it.
const unfinished = "."

func (n *Network) file(id string) string { return filepath.Join(n.dir, "attachments", id) }

func (p Pod) runtime() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: p.ID, NetNS: p.Namespace, IfName: link,
		CapabilityArgs: map[string]any{"berth": p.Owner},
	}
}

// fail returns the outcome of a pod that could not be connected.
func (n *Network) fail(pod Pod, err error) Outcome {
	return Outcome{Err: fmt.Errorf("connect %s by CNI (list %s): %w", pod.ID, n.list.Name, withKillReason(err))}
}

// kept returns the list that connected a pod, or nil if no attempt was begun. It also
// returns the result, or nil if that is unknown. A partly written result counts as
// unknown: either its plugins did not finish, or the node failed, and the pod with
// it.
func (n *Network) kept(pod Pod) (*libcni.NetworkConfigList, types.Result, error) {
	former, _, err := n.begun(pod.ID)
	if err != nil || former == nil {
		return nil, nil, err
	}
	result, err := n.cni.GetNetworkListCachedResult(former, pod.runtime())
	if err != nil {
		return former, nil, nil
	}
	return former, result, nil
}

// attach connects a pod unless it is connected. With check, it asks the plugins whether
// the pod still is, and connects it again if not.
func (n *Network) attach(ctx context.Context, pod Pod, check bool) Outcome {
	fail := func(err error) Outcome { return n.fail(pod, err) }
	former, result, err := n.kept(pod)
	if err != nil {
		return fail(err)
	}
	if former != nil {
		if result != nil {
			if check {
				err = n.cni.CheckNetworkList(ctx, former, pod.runtime())
			}
			if err == nil {
				return n.connected(pod, result)
			}
			if !saysBroken(err) || ctx.Err() != nil {
				// A plugin that cannot check is no reason to take the network from a
				// job.
				return fail(err)
			}
		}
		// The remains of an unfinished attempt would be in the way.
		if err := n.cni.DelNetworkList(ctx, former, pod.runtime()); err != nil {
			return fail(err)
		}
	}
	var address netip.Addr
	err = n.begin(pod)
	if err == nil {
		if result, err = n.cni.AddNetworkList(ctx, n.list, pod.runtime()); err == nil {
			address, err = addressOf(result)
		}
	}
	if err != nil {
		outcome := fail(err)
		outcome.Gone = true
		return outcome
	}
	return Outcome{Address: address, Changed: true}
}

// connected returns the outcome of a pod that plugins connected earlier.
func (n *Network) connected(pod Pod, result types.Result) Outcome {
	address, err := addressOf(result)
	if err != nil {
		return n.fail(pod, err)
	}
	return Outcome{Address: address}
}

// begun returns the record of a pod, and the list that connected it or was to connect
// it. The list is nil if there is no record. An unreadable record only shows that
// plugins were called. Then begun returns the current list, because otherwise nothing
// would undo their work.
func (n *Network) begun(id string) (*libcni.NetworkConfigList, attachment, error) {
	text, err := os.ReadFile(n.file(id))
	if os.IsNotExist(err) {
		return nil, attachment{}, nil
	}
	if err != nil {
		return nil, attachment{}, err
	}
	var kept attachment
	if err := json.Unmarshal(text, &kept); err != nil {
		return n.list, attachment{}, nil
	}
	list, err := libcni.NetworkConfFromBytes(kept.List)
	if err != nil {
		return n.list, kept, nil
	}
	return list, kept, nil
}

// begin records a pod on disk before any plugin is called. It syncs the record, which
// must survive a power failure right afterwards.
func (n *Network) begin(pod Pod) error {
	text, err := json.Marshal(attachment{Namespace: pod.Namespace, Owner: pod.Owner, List: n.list.Bytes})
	if err != nil {
		return err
	}
	temporary := n.file(unfinished + pod.ID)
	file, err := os.OpenFile(temporary, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = file.Write(text); err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(temporary, n.file(pod.ID))
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	dir, err := os.Open(n.file(""))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Codes of errors that a plugin returns if it cannot answer now. They say nothing
// about the connection (SPEC.md of CNI, "Error"). The module names the third one,
// types.ErrTryAgainLater, but not these two.
const (
	notAvailable        = 50
	notAvailableLimited = 51
)

// saysBroken reports whether a plugin has checked the connection and found it
// changed.
func saysBroken(err error) bool {
	var said *types.Error
	if !errors.As(err, &said) {
		return false
	}
	switch said.Code {
	case types.ErrTryAgainLater, notAvailable, notAvailableLimited:
		return false
	}
	return true
}

// addressOf returns the IPv4 address that plugins gave to the pod's interface.
// Addresses of other interfaces do not count: the bridge plugin also lists its own
// interface.
func addressOf(result types.Result) (netip.Addr, error) {
	r, err := types100.NewResultFromResult(result)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, ip := range r.IPs {
		address, ok := netip.AddrFromSlice(ip.Address.IP)
		if address = address.Unmap(); !ok || !address.Is4() {
			continue
		}
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(r.Interfaces) && r.Interfaces[*i].Sandbox == "" {
			continue
		}
		return address, nil
	}
	return netip.Addr{}, errors.New("the plugins have given it no IPv4 address: give the list a plugin with ipam")
}

// withKillReason adds the reason to the error of a plugin that was killed.
func withKillReason(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the plugins have not ended in time: %w", err)
	}
	return err
}
