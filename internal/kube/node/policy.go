package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	kubelettypes "k8s.io/kubelet/pkg/types"
	"k8s.io/kubernetes/pkg/kubelet/cm"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/network/policy"
)

// policyTimeout bounds the time that a container waits until the policies of its
// pod are in force. The kubelet tries again after that.
const policyTimeout = 10 * time.Second

// policyFilter writes nftables rules for the network policies of the node's pods. The
// rules stay in the kernel after the role has ended, when no pod can start.
type policyFilter struct {
	plan   cluster.Plan
	log    *slog.Logger
	notice func(string)
	sender *serviceSender // nil without a fast path
	// nft executes a file.
	nft   func(ctx context.Context, path string) error
	hints policy.Hints

	mu      sync.Mutex
	state   *policy.State // in force; nil if none is known yet
	changed chan struct{} // closed when state changes

	// text is the ruleset in force. known reports whether that is certain.
	text  string
	known bool
	// said is the last error that was reported to the user.
	said string
}

func newPolicyFilter(plan cluster.Plan, o Options, sender *serviceSender) *policyFilter {
	return &policyFilter{sender: sender, plan: plan, log: o.Log, notice: o.Notifier.Notice, nft: runNft, changed: make(chan struct{})}
}

func runNft(ctx context.Context, path string) error {
	out, err := exec.CommandContext(ctx, "nft", "-f", path).CombinedOutput()
	if err != nil {
		return fmt.Errorf("nft -f %s: %w: %s", path, err, out)
	}
	return nil
}

// run follows the policies until ctx ends.
func (f *policyFilter) run(ctx context.Context, api *access) {
	f.look()
	config := policy.Config{
		Core: api.client.CoreV1().RESTClient(), Networking: api.client.NetworkingV1().RESTClient(),
		VirtualPods: []policy.VirtualPod{policy.ClusterDNS(f.plan.Addresses.DNS)}, Hints: &f.hints,
	}
	policy.Watch(ctx, config, func(s *policy.State) error { return f.enforce(ctx, s) })
}

// look checks whether an earlier process of the role has left rules.
func (f *policyFilter) look() {
	_, err := os.Lstat(f.script())
	f.text, f.known = "", errors.Is(err, os.ErrNotExist)
}

func (f *policyFilter) script() string { return filepath.Join(f.plan.Paths.Run, "network-policy.nft") }

// enforce puts a State into force. While the State is pending, the rules before stay in
// force, and no new container starts. It returns an error if nft refuses the rules.
func (f *policyFilter) enforce(ctx context.Context, s *policy.State) error {
	if f.sender != nil {
		f.sender.permit(s)
	}
	if !s.Pending {
		text := s.Ruleset(f.plan.Node.Name)
		if err := f.load(ctx, text); err != nil {
			f.known = false
			f.log.Error("Network policies are not in force", "error", err)
			if said := err.Error(); said != f.said { // report an error once, not at each attempt
				f.said = said
				f.notice("a change of network policies is not in force on " + f.plan.Node.Name + ", and no pod starts there until it is: " + said)
			}
			f.set(&policy.State{Pending: true})
			return err
		}
		f.text, f.known, f.said = text, true, ""
	}
	f.set(s)
	return nil
}

// set informs waiting containers of the policies in force.
func (f *policyFilter) set(s *policy.State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = s
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *policyFilter) load(ctx context.Context, text string) error {
	if f.known && text == f.text {
		return nil
	}
	if text != "" {
		// Write the file first, so that a later process of the role finds it.
		if err := os.WriteFile(f.script(), []byte(text), 0o600); err != nil {
			return fmt.Errorf("write rules for network policies: %w", err)
		}
		return f.nft(ctx, f.script())
	}
	if err := os.WriteFile(f.script(), []byte(policy.Removal()), 0o600); err != nil {
		return fmt.Errorf("write rules for network policies: %w", err)
	}
	if err := f.nft(ctx, f.script()); err != nil {
		return err
	}
	return os.Remove(f.script())
}

// await returns nil when the policies of a pod are in force for all of its addresses. It
// calls addresses only if the cluster has policies. It returns an error after
// policyTimeout.
func (f *policyFilter) await(ctx context.Context, uid types.UID, addresses func(context.Context) ([]netip.Addr, error)) error {
	ctx, cancel := context.WithTimeout(ctx, policyTimeout)
	defer cancel()
	var own []netip.Addr
	for {
		f.mu.Lock()
		state, changed := f.state, f.changed
		f.mu.Unlock()
		if state != nil {
			if state.None() {
				return nil
			}
			if own == nil {
				var err error
				if own, err = addresses(ctx); err != nil {
					return fmt.Errorf("put the network policies of the pod into force: %w", err)
				}
			}
			if knows(state, uid, own) {
				return nil
			}
			f.hints.Give(uid, own)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("put the network policies of the pod into force: not done after %s", policyTimeout)
		}
	}
}

func knows(s *policy.State, uid types.UID, addresses []netip.Addr) bool {
	for _, a := range addresses {
		if pod, ok := s.Pods[a]; !ok || pod.UID != uid {
			return false
		}
	}
	return true
}

// policyGate delays a pod's containers until its policies are in force. That is possible
// because a pod has its addresses before its first container starts.
type policyGate struct {
	cm.InternalContainerLifecycle
	ctx     context.Context // the kubelet's hook has none
	filter  *policyFilter
	runtime cri.RuntimeServiceClient
}

// gatedManager is a container manager whose containers start behind the gate.
type gatedManager struct {
	cm.ContainerManager
	gate *policyGate
}

// InternalContainerLifecycle implements cm.ContainerManager.
func (m *gatedManager) InternalContainerLifecycle() cm.InternalContainerLifecycle { return m.gate }

func newPolicyGate(ctx context.Context, next cm.InternalContainerLifecycle, filter *policyFilter) (*policyGate, error) {
	socket := filter.plan.Paths.ContainerdSocket()
	// The client connects at its first request, and is never closed.
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %s: %w", socket, err)
	}
	return &policyGate{next, ctx, filter, cri.NewRuntimeServiceClient(conn)}, nil
}

// PreCreateContainer implements cm.InternalContainerLifecycle.
func (g *policyGate) PreCreateContainer(log klog.Logger, pod *v1.Pod, container *v1.Container, config *cri.ContainerConfig) error {
	if !pod.Spec.HostNetwork {
		ask := func(ctx context.Context) ([]netip.Addr, error) { return g.addresses(ctx, pod.UID) }
		if err := g.filter.await(g.ctx, pod.UID, ask); err != nil {
			return err
		}
	}
	return g.InternalContainerLifecycle.PreCreateContainer(log, pod, container, config)
}

// addresses requests a pod's addresses from the runtime. It returns an error if the pod has
// no sandbox that is ready.
func (g *policyGate) addresses(ctx context.Context, uid types.UID) ([]netip.Addr, error) {
	list, err := g.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{
		LabelSelector: map[string]string{kubelettypes.KubernetesPodUIDLabel: string(uid)},
		State:         &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY},
	}})
	if err != nil {
		return nil, fmt.Errorf("find the sandbox of pod %s: %w", uid, err)
	}
	var found []netip.Addr
	for _, sandbox := range list.GetItems() {
		reply, err := g.runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: sandbox.GetId()})
		if err != nil {
			return nil, fmt.Errorf("ask for the addresses of pod %s: %w", uid, err)
		}
		network := reply.GetStatus().GetNetwork()
		texts := []string{network.GetIp()}
		for _, more := range network.GetAdditionalIps() {
			texts = append(texts, more.GetIp())
		}
		for _, text := range texts {
			address, err := netip.ParseAddr(text)
			if err != nil {
				return nil, fmt.Errorf("read the addresses of pod %s: %w", uid, err)
			}
			found = append(found, address)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("find the addresses of pod %s: it has no sandbox that is ready", uid)
	}
	return found, nil
}
