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
	// running is the kubelet that upstream's code creates in run; nil before.
	running atomic.Pointer[kubelet.Kubelet]
}

// maxLoopPause is the time without a round of the kubelet's main loop after which the
// role counts as hung. The loop makes a round at least once a second.
const maxLoopPause = time.Minute

// healthy returns an error if the kubelet does not exist yet, or if its main loop is stuck.
func (k *nodeKubelet) healthy() error {
	running := k.running.Load()
	if running == nil {
		return errors.New("the kubelet has not been created yet")
	}
	if last := running.LatestLoopEntryTime(); time.Since(last) > maxLoopPause {
		return fmt.Errorf("the kubelet's main loop has been stuck since %s", last)
	}
	return nil
}

// dependencies returns the kubelet's dependencies. It does not call upstream's
// constructor (app.UnsecuredDependencies), which executes umount(8) to detect its
// behaviour. It also sets the clients and the source of pods, because upstream would
// create them in a way that polls.
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
		// Upstream closes all connections here. HTTP/2 detects a dead connection by its
		// own pings, and the API server is reached within the node's network namespace.
		OnHeartbeatFailure:       func() {},
		Mounter:                  mounts,
		HostUtil:                 mounter.NewHostUtil(),
		Subpather:                subpath.New(mounts),
		OOMAdjuster:              oom.NewFakeOOMAdjuster(), // only root may lower a score
		OSInterface:              kubecontainer.RealOS{},
		TracerProvider:           noop.NewTracerProvider(),
		VolumePlugins:            plugins,
		TLSOptions:               tls,
		PodStartupLatencyTracker: kubeletutil.NewPodStartupLatencyTracker(),
	}
	d.Recorder = newPullReports(ctx, newRecorder(ctx, plan, api.client.CoreV1()),
		func() (of, all int64) { return metrics.ReceivedImages(plan.Paths.ContainerdRoot()) })
	// Upstream waits for its Node informer in steps of a second before it
	// watches pods. api.opened waits for the registration of the node instead, because
	// pods can only be bound to a registered node.
	d.PodConfig = podconfig.NewPodConfig(d.Recorder, d.PodStartupLatencyTracker)
	podconfig.NewSourceApiserver(klog.FromContext(ctx), api.client, types.NodeName(plan.Node.Name),
		func() bool { return api.opened(ctx) }, d.PodConfig.Channel(ctx, kubetypes.ApiserverSource))
	return d, nil
}

// newKubelet creates every part of the kubelet that needs neither the API server nor the
// container runtime.
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
			log.Warn("Pods start and end more slowly, as with an unmodified kubelet", "error", err)
		}
		if err := serveContainerLogs(k, plan.Paths.LogSocket(), plan.Paths.Unwritten(), log); err != nil {
			log.Warn("Output of containers arrives more slowly, as with an unmodified kubelet", "error", err)
		}
		fromShim := shimNotices{plan.Paths.Notices(), d.Recorder}
		go followContainers(ctx, plan.Paths.ContainerdSocket(), log, func(pod types.UID) {
			k.RequestPodRelist(pod)
			fromShim.report()
		})
	}}

	containers, err := newContainerManager(ctx, plan, server, d)
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

// run runs the kubelet until ctx ends, and then returns nil. Pods continue to run; they
// end with the sandbox.
func (k *nodeKubelet) run(ctx context.Context) error {
	if err := app.Run(ctx, k.server, k.deps, utilfeature.DefaultFeatureGate); err != nil {
		return fmt.Errorf("run the kubelet: %w", err)
	}
	if ctx.Err() == nil {
		return errEnded
	}
	return nil
}

var errEnded = errors.New("run the kubelet: it ended unexpectedly")

func newRecorder(ctx context.Context, plan cluster.Plan, client typedv1.EventsGetter) record.EventRecorderLogger {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartStructuredLogging(3)
	b.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: client.Events("")})
	return b.NewRecorder(legacyscheme.Scheme, v1.EventSource{Component: "kubelet", Host: plan.Node.Name})
}

// machineID returns an ID that differs between the nodes of all clusters. It is not the
// host's own ID, which pods need not know.
func machineID(plan cluster.Plan) string {
	sum := sha256.Sum256([]byte(plan.RunID + "/" + plan.Node.Name))
	return hex.EncodeToString(sum[:16])
}

// imageDir returns a directory on the same file system as the images. Unlike
// containerd's own directory, it exists from the start.
func imageDir(p cluster.Paths) string { return p.Scratch }
