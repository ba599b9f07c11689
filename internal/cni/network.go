package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/utils"
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

	mu sync.Mutex
}

// Open reads a list, and whether all of its plugins are there. dir is where it is
// remembered what has been asked of them.
func Open(ctx context.Context, list string, plugins []string, dir string) (*Network, error) {
	n := &Network{dir: dir, cni: libcni.NewCNIConfigWithCacheDir(plugins, dir, newProgram())}
	text, err := os.ReadFile(list)
	if err != nil {
		return nil, fmt.Errorf("read list of CNI plugins: %w: correct 'cni.list' in the configuration", err)
	}
	if n.list, err = libcni.NetworkConfFromBytes(text); err != nil {
		return nil, fmt.Errorf("read list of CNI plugins %s: %w", list, err)
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
	major, rest, _ := strings.Cut(list.CNIVersion, ".")
	minor, _, _ := strings.Cut(rest, ".")
	if major == "0" && slices.Contains([]string{"0", "1", "2", "3"}, minor) {
		return fmt.Errorf("cniVersion %s: choose 0.4.0 or newer", list.CNIVersion)
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
	// Address is the pod's, where Err is nil.
	Address netip.Addr
	// Changed: plugins have just connected it.
	Changed bool
	Err     error
	// Gone: it has failed, and what the pod may have had before was undone.
	Gone bool
}

// Apply has these pods connected and no others. It may be called at any time, after
// whatever happened in between; the next call mends what this one left undone. With
// check, plugins are asked whether what they have made is still there, and make it
// again where it is not. What fails for one pod is that pod's outcome; the error is
// of pods that are no longer wanted.
func (n *Network) Apply(ctx context.Context, pods []Pod, check bool) (map[string]Outcome, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := os.MkdirAll(n.file(""), 0o700); err != nil {
		return nil, fmt.Errorf("make directory of CNI's results: %w", err)
	}
	entries, err := os.ReadDir(n.file(""))
	if err != nil {
		return nil, fmt.Errorf("list pods that CNI has connected: %w", err)
	}
	wanted := map[string]Pod{}
	for _, pod := range pods {
		wanted[pod.ID] = pod
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var problems []error
	outcomes := map[string]Outcome{}
	// First what goes: its addresses may be needed.
	for _, entry := range entries {
		if _, stays := wanted[entry.Name()]; stays || strings.HasPrefix(entry.Name(), unfinished) {
			continue
		}
		all.Go(func() {
			err := n.remove(ctx, entry.Name())
			mu.Lock()
			defer mu.Unlock()
			problems = append(problems, err)
		})
	}
	all.Wait()
	for id := range maps.Keys(wanted) {
		all.Go(func() {
			outcome := n.attach(ctx, wanted[id], check)
			mu.Lock()
			defer mu.Unlock()
			outcomes[id] = outcome
		})
	}
	all.Wait()
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

// attach connects a pod unless it is.
func (n *Network) attach(ctx context.Context, pod Pod, check bool) Outcome {
	fail := func(err error) Outcome {
		return Outcome{Err: fmt.Errorf("connect %s by CNI (list %s): %w", pod.ID, n.list.Name, told(err))}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	former, err := n.begun(pod.ID)
	if err != nil {
		return fail(err)
	}
	if former != nil {
		result, err := n.cni.GetNetworkListCachedResult(former, pod.runtime())
		if err == nil && result != nil && check {
			err = n.cni.CheckNetworkList(ctx, former, pod.runtime())
		}
		var said *types.Error
		switch {
		case err == nil && result != nil:
			address, err := addressOf(result)
			if err != nil {
				return fail(err)
			}
			return Outcome{Address: address}
		case err != nil && (!errors.As(err, &said) || ctx.Err() != nil):
			// A plugin that cannot say is no reason to take a job's network away.
			return fail(err)
		}
		// What was begun, and perhaps not finished, would be in the way.
		if err := n.cni.DelNetworkList(ctx, former, pod.runtime()); err != nil {
			return fail(err)
		}
	}
	if err := n.begin(pod); err != nil {
		return fail(err)
	}
	result, err := n.cni.AddNetworkList(ctx, n.list, pod.runtime())
	var address netip.Addr
	if err == nil {
		address, err = addressOf(result)
	}
	if err != nil {
		outcome := fail(err)
		outcome.Gone = true
		return outcome
	}
	return Outcome{Address: address, Changed: true}
}

// remove has plugins undo what they did for a pod, by the list that they did it by.
func (n *Network) remove(ctx context.Context, id string) error {
	fail := func(err error) error { return fmt.Errorf("disconnect %s by CNI: %w", id, told(err)) }
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	former, err := n.begun(id)
	if err != nil {
		return fail(err)
	}
	kept, err := n.kept(id)
	if err != nil {
		return fail(err)
	}
	pod := Pod{ID: id, Namespace: kept.Namespace, Owner: kept.Owner}
	if err := n.cni.DelNetworkList(ctx, former, pod.runtime()); err != nil {
		return fail(err)
	}
	if err := os.Remove(n.file(id)); err != nil && !os.IsNotExist(err) {
		return fail(err)
	}
	return nil
}

func (n *Network) kept(id string) (attachment, error) {
	var kept attachment
	text, err := os.ReadFile(n.file(id))
	if err != nil {
		return kept, err
	}
	if err := json.Unmarshal(text, &kept); err != nil {
		return kept, fmt.Errorf("read %s: %w", n.file(id), err)
	}
	return kept, nil
}

// begun is the list by which a pod has been connected, or was to be, nil if none.
func (n *Network) begun(id string) (*libcni.NetworkConfigList, error) {
	kept, err := n.kept(id)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list, err := libcni.NetworkConfFromBytes(kept.List)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", n.file(id), err)
	}
	return list, nil
}

// begin remembers a pod before any plugin knows of it.
func (n *Network) begin(pod Pod) error {
	text, err := json.Marshal(attachment{Namespace: pod.Namespace, Owner: pod.Owner, List: n.list.Bytes})
	if err != nil {
		return err
	}
	temporary := n.file(unfinished + pod.ID)
	return errors.Join(os.WriteFile(temporary, text, 0o600), os.Rename(temporary, n.file(pod.ID)))
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
