package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/kubelet"
	podconfig "k8s.io/kubernetes/pkg/kubelet/config"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
	kubeletutil "k8s.io/kubernetes/pkg/kubelet/util"
	"k8s.io/kubernetes/pkg/util/oom"
	"k8s.io/kubernetes/pkg/volume/util/subpath"

	"go.opentelemetry.io/otel/trace/noop"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/metrics"
	"berth.dev/berth/internal/kube/mounter"
	"berth.dev/berth/internal/kube/procstats"
)

// nodeKubelet is a kubelet that is ready to run.
type nodeKubelet struct {
	server *options.KubeletServer
	deps   *kubelet.Dependencies
	// running is set while upstream makes the kubelet itself.
	running atomic.Pointer[kubelet.Kubelet]
}

// loopMost limits how long the kubelet's main loop, which runs at least once a
// second, may stand still before the role counts as hung.
const loopMost = time.Minute

// healthy fails when the kubelet's main loop stands still.
func (k *nodeKubelet) healthy() error {
	running := k.running.Load()
	if running == nil {
		return errors.New("the kubelet was not made yet")
	}
	if last := running.LatestLoopEntryTime(); time.Since(last) > loopMost {
		return fmt.Errorf("the kubelet's main loop stands still since %s", last)
	}
	return nil
}

// dependencies makes the kubelet's dependencies. Upstream's own constructor is not
// used: it executes umount(8) to learn how that behaves, and leaves out the clients
// and the source of pods, which upstream makes in a way that polls.
func dependencies(ctx context.Context, plan cluster.Plan, api *access, server *options.KubeletServer) (*kubelet.Dependencies, error) {
	plugins, err := app.ProbeVolumePlugins(ctx, utilfeature.DefaultFeatureGate)
	if err != nil {
		return nil, fmt.Errorf("list volume plugins: %w", err)
	}
	tls, err := app.InitializeTLS(ctx, &server.KubeletFlags, &server.KubeletConfiguration)
	if err != nil {
		return nil, fmt.Errorf("configure TLS of the kubelet's server: %w", err)
	}
	heartbeatConfig := *api.config
	heartbeatConfig.Timeout = server.NodeStatusUpdateFrequency.Duration
	heartbeat, err := kubernetes.NewForConfig(&heartbeatConfig)
	if err != nil {
		return nil, fmt.Errorf("make the client for heartbeats: %w", err)
	}

	mounts := mounter.New()
	d := &kubelet.Dependencies{
		CAdvisorInterface: procstats.New(procstats.Config{
			CPUs: plan.Node.CPUs, MemoryBytes: plan.Node.MemoryBytes, MachineID: machineID(plan),
			Kubelet: plan.Paths.Kubelet, Images: imageDir(plan.Paths),
			Bundles: procstats.BundleDir(plan.Paths.ContainerdState()),
		}),
		KubeClient:      api.client,
		EventClient:     api.client.CoreV1(),
		HeartbeatClient: heartbeat,
		// HTTP/2 finds a dead connection by its own pings; and this one ends
		// in the same namespace.
		OnHeartbeatFailure:       func() {},
		Mounter:                  mounts,
		HostUtil:                 mounter.NewHostUtil(),
		Subpather:                subpath.New(mounts),
		OOMAdjuster:              oom.NewFakeOOMAdjuster(), // lowering a score takes root
		OSInterface:              kubecontainer.RealOS{},
		TracerProvider:           noop.NewTracerProvider(),
		VolumePlugins:            plugins,
		TLSOptions:               tls,
		PodStartupLatencyTracker: kubeletutil.NewPodStartupLatencyTracker(),
	}
	d.Recorder = newPullReports(ctx, newRecorder(ctx, plan, api.client.CoreV1()),
		func() (of, all int64) { return metrics.ReceivedImages(plan.Paths.ContainerdRoot()) })
	// Upstream waits for its Node informer in steps of a second before it
	// watches pods. The gate waits for the registration of the node instead, because
	// pods can only be bound to a registered node.
	d.PodConfig = podconfig.NewPodConfig(d.Recorder, d.PodStartupLatencyTracker)
	podconfig.NewSourceApiserver(klog.FromContext(ctx), api.client, types.NodeName(plan.Node.Name),
		func() bool { return api.opened(ctx) }, d.PodConfig.Channel(ctx, kubetypes.ApiserverSource))
	return d, nil
}

// newKubelet makes every part that needs neither the API server nor the
// runtime.
func newKubelet(ctx context.Context, plan cluster.Plan, api *access, filter *policyFilter, log *slog.Logger) (*nodeKubelet, error) {
	server, err := kubeletServer(plan)
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{server.RootDirectory, server.PodLogsDir} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return nil, fmt.Errorf("make the kubelet's directory: %w", err)
		}
	}
	d, err := dependencies(ctx, plan, api, server)
	if err != nil {
		return nil, err
	}
	podNotices := newNotices(plan, d.Recorder)
	n := &nodeKubelet{server: server, deps: d}
	d.Options = []kubelet.Option{func(k *kubelet.Kubelet) {
		n.running.Store(k)
		k.AddPodSyncHandler(podNotices)
		if err := errors.Join(installPromptVolumes(k), installPromptQueue(ctx, k)); err != nil {
			log.Warn("Pods start and end at upstream's pace", "error", err)
		}
		if err := serveContainerLogs(k, plan.Paths.LogSocket(), plan.Paths.Unwritten(), log); err != nil {
			log.Warn("Output of containers is only served at upstream's pace", "error", err)
		}
		left := leftNotices{plan.Paths.Notices(), d.Recorder}
		go followContainers(ctx, plan.Paths.ContainerdSocket(), log, func(pod types.UID) {
			k.RequestPodRelist(pod)
			left.report()
		})
	}}

	containers, err := newContainerManager(ctx, server, d)
	if err != nil {
		return nil, err
	}
	gate, err := newPolicyGate(ctx, containers.InternalContainerLifecycle(), filter)
	if err != nil {
		return nil, err
	}
	d.ContainerManager = &gatedManager{containers, gate}
	return n, nil
}

// run runs the kubelet until ctx ends. Pods outlive it: whoever ends the
// sandbox ends them.
func (k *nodeKubelet) run(ctx context.Context) error {
	if err := app.Run(ctx, k.server, k.deps, utilfeature.DefaultFeatureGate); err != nil {
		return fmt.Errorf("run the kubelet: %w", err)
	}
	if ctx.Err() == nil {
		return errEnded
	}
	return nil
}

var errEnded = errors.New("run the kubelet: it returned unasked")

func newRecorder(ctx context.Context, plan cluster.Plan, client typedv1.EventsGetter) record.EventRecorderLogger {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartStructuredLogging(3)
	b.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: client.Events("")})
	return b.NewRecorder(legacyscheme.Scheme, v1.EventSource{Component: "kubelet", Host: plan.Node.Name})
}

// machineID distinguishes the nodes of all clusters. Pods need not know the
// host's own id.
func machineID(plan cluster.Plan) string {
	sum := sha256.Sum256([]byte(plan.RunID + "/" + plan.Node.Name))
	return hex.EncodeToString(sum[:16])
}

// imageDir returns a directory on the file system of the images that exists before
// containerd made its own.
func imageDir(p cluster.Paths) string { return p.Scratch }
