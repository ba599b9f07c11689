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

// Link is what a pod sees.
const Link = "eth0"

// limit bounds what the plugins of a list together take to connect a pod, or to
// disconnect one: less than a step waits for its network.
const limit = 10 * time.Second

// Pod is one of this node.
type Pod struct {
	// ID is that of no other pod, here or elsewhere, now or later.
	ID string
	// Namespace is a file that is its network namespace.
	Namespace string
	// Owner is what plugins are told that have the capability "berth".
	Owner Owner
	// Again: plugins are asked although they have failed, and nothing but that is known since.
	Again bool
}

// Owner is whose a pod is. Network has a number for each user, or group of users who
// share one, which plugins may take for a VLAN or a key.
type Owner struct {
	User    string `json:"user"`
	UID     uint32 `json:"uid"`
	Job     uint32 `json:"job,omitempty"`
	Network uint32 `json:"network"`
}

// Network is a list of plugins, and which pods they have connected.
type Network struct {
	list *libcni.NetworkConfigList
	cni  *libcni.CNIConfig
	// dir outlives a boot, as what plugins keep does.
	dir string

	// limit is the constant, unless a test has no time for it.
	limit time.Duration
	// ended is called when there is something for Apply to return that it has not.
	ended func()

	mu sync.Mutex
	// attempts are of pods that are wanted, by ID, removals of those that are no longer.
	attempts map[string]*attempt
	removals map[string]*removal
	// abandoned are attempts that were ended, and may not have yet.
	abandoned map[string]*attempt
}

// Open reads a list, and whether all of its plugins are there and root's. dir is where
// it is remembered what has been asked of them. ended is called, on any goroutine, when a
// pod that was pending no longer is, and must not block: Apply says then what has become of it.
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

// usable: before 0.4.0 plugins were not told at the end what they had made, and could
// not be asked whether it is still there.
func usable(list *libcni.NetworkConfigList) error {
	if len(list.Plugins) == 0 {
		return errors.New("it has no plugins: write them as a list, plugins: [...]")
	}
	if err := utils.ValidateNetworkName(list.Name); err != nil {
		return err
	}
	// None is 0.1.0.
	recent, err := version.GreaterThanOrEqualTo(list.CNIVersion, "0.4.0")
	if err != nil {
		return err
	}
	if !recent {
		return fmt.Errorf("cniVersion %q: choose 0.4.0 or newer", list.CNIVersion)
	}
	return nil
}

// attachment is what is kept of a pod from before its first plugin is started until
// its last one has undone what it did: also of one that never was connected in full,
// and of one whose namespace went with the node's power. libcni keeps the result.
type attachment struct {
	Namespace string          `json:"namespace"`
	Owner     Owner           `json:"owner"`
	List      json.RawMessage `json:"list"`
}

// Outcome is what has become of a pod.
type Outcome struct {
	// Pending: plugins are still at it, and nothing else is known.
	Pending bool
	// Address is the pod's, where Err is nil.
	Address netip.Addr
	// Changed: plugins have just connected it.
	Changed bool
	// Checked: plugins have been asked whether it is still there.
	Checked bool
	Err     error
	// Gone: it has failed, and what the pod may have had before was undone.
	Gone bool
}

// Apply has these pods connected and no others. It may be called at any time, after
// whatever happened in between; the next call mends what this one left undone. With
// check, plugins are asked whether what they have made is still there, and make it
// again where it is not. It does not wait for them: a plugin that hangs is the matter of
// its own pod. What fails for one pod is that pod's outcome; the error is
// of pods that are no longer wanted, for which nobody waits long.
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
	// inUse are the namespaces in which there may be an interface of a pod that stays.
	inUse := map[string]bool{}
	for _, entry := range entries {
		pod, stays := wanted[entry.Name()]
		switch {
		case strings.HasPrefix(entry.Name(), unfinished):
			if n.attempts[strings.TrimPrefix(entry.Name(), unfinished)] == nil {
				// Its writer was killed.
				problems = append(problems, os.Remove(n.file(entry.Name())))
			}
		case stays:
			inUse[pod.Namespace] = true
		default:
			gone = append(gone, entry.Name())
		}
	}
	// First what goes: its addresses may be needed.
	problems = append(problems, n.removeAll(ctx, gone, inUse))
	n.interrupt(wanted)
	outcomes := map[string]Outcome{}
	for id, pod := range wanted {
		outcomes[id] = n.outcome(ctx, pod, check)
	}
	return outcomes, errors.Join(problems...)
}

// unfinished begins the name of a file that is being written. No pod's ID begins so.
const unfinished = "."

func (n *Network) file(id string) string { return filepath.Join(n.dir, "attachments", id) }

func (p Pod) runtime() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: p.ID, NetNS: p.Namespace, IfName: Link,
		CapabilityArgs: map[string]any{"berth": p.Owner},
	}
}

// fail is what has become of a pod that plugins do not connect.
func (n *Network) fail(pod Pod, err error) Outcome {
	return Outcome{Err: fmt.Errorf("connect %s by CNI (list %s): %w", pod.ID, n.list.Name, told(err))}
}

// kept is by which list a pod has been connected, nil if it was not even begun, and with
// which result, nil if it is not known. A result that was not written in full is none:
// its plugins have not ended, or the node did, and with it the pod.
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

// attach connects a pod unless it is.
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
				// A plugin that cannot say is no reason to take a job's network away.
				return fail(err)
			}
		}
		// What was begun, and perhaps not finished, would be in the way.
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

// connected is what has become of a pod that plugins have connected before.
func (n *Network) connected(pod Pod, result types.Result) Outcome {
	address, err := addressOf(result)
	if err != nil {
		return n.fail(pod, err)
	}
	return Outcome{Address: address}
}

// begun is the list by which a pod has been connected, or was to be, nil if none, and
// what else is kept of it. Of what cannot be read nothing is known but that plugins were
// asked: those of today have to undo it then, as nobody would otherwise.
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

// begin remembers a pod before any plugin knows of it, also should the node lose its
// power right afterwards.
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

// Codes by which a plugin says that it cannot do now what it is asked, and nothing of
// what it has made (SPEC.md of CNI, "Error"). The module has no names for the last two.
const (
	notAvailable        = 50
	notAvailableLimited = 51
)

// saysBroken: a plugin has looked, and what it made is not as it was.
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

// addressOf is the IPv4 address that plugins have given to the pod's interface. An
// address of another interface is not the pod's: bridge names its own as well.
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

// told says what a plugin that was ended cannot say.
func told(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the plugins have not ended in time: %w", err)
	}
	return err
}
