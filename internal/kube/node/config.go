package node

import (
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/cluster"
)

// Sizes and times that differ from upstream's defaults.
const (
	// One workload uses the node, and its log is the product: a follower that
	// reads slowly must not lose it to a rotation. With more than two files, the
	// kubelet compresses one before it rotates the next. A container that writes
	// faster than gzip would fill the disk with ever larger files.
	logMaxSize  = "128Mi"
	logMaxFiles = 2
	// The disk is shared with others, whose use of it must not evict pods
	// while there is room: a fraction of it would do that.
	diskReserve = "256Mi"
	// Pressure must not outlive its cause by the default five minutes: that
	// is more than many jobs take.
	pressureTransition = 30 * time.Second
)

// kubeletServer returns the kubelet's whole configuration for a plan.
func kubeletServer(plan cluster.Plan) (*options.KubeletServer, error) {
	s, err := options.NewKubeletServer()
	if err != nil {
		return nil, fmt.Errorf("default the kubelet's configuration: %w", err)
	}
	p, a := plan.Paths, plan.Addresses

	f := &s.KubeletFlags
	f.KubeConfig = p.Kubeconfig(cluster.UserKubelet)
	f.RootDirectory = p.Kubelet
	f.CertDirectory = p.Kubelet + "/pki"
	f.HostnameOverride = plan.Node.Name
	f.NodeIP = a.List(func(f cluster.Family) string { return f.Node.String() })
	f.NodeLabels = plan.Node.Labels
	// The plan sets allocatable; the kubelet subtracts no second reserve.
	f.ExperimentalNodeAllocatableIgnoreEvictionThreshold = true

	c := &s.KubeletConfiguration
	c.FeatureGates = map[string]bool{"KubeletInUserNamespace": true, cluster.SplitLogsGate: true}
	c.ContainerRuntimeEndpoint = "unix://" + p.ContainerdSocket()
	c.PodLogsDir = p.PodLogs()
	c.VolumePluginDir = p.Kubelet + "/volume-plugins"
	c.ResolverConfig = p.ResolvConf()
	c.ClusterDNS = []string{a.DNSService.String()}
	c.ClusterDomain = "cluster.local"
	c.MaxPods = int32(plan.Node.MaxPods)
	c.MaxOpenFiles = openFiles()
	// register creates the Node: upstream sleeps 100 ms before it tries.
	c.RegisterNode = false

	c.Address = a.Node.String()
	c.ReadOnlyPort = 0
	c.HealthzPort = 0 // healthy looks inside
	// Not of /var/log, see serveContainerLogs.
	c.EnableSystemLogHandler = true
	c.EnableProfilingHandler = false
	c.TLSCertFile = p.PKI(cluster.KubeletServer + ".crt")
	c.TLSPrivateKeyFile = p.PKI(cluster.KubeletServer + ".key")
	c.RotateCertificates = false
	c.Authentication.Anonymous.Enabled = false
	c.Authentication.Webhook.Enabled = true
	c.Authentication.X509.ClientCAFile = p.PKI(cluster.CA + ".crt")
	c.Authorization.Mode = kubeletconfig.KubeletAuthorizationModeWebhook

	c.SystemReserved = map[string]string{"memory": strconv.FormatUint(plan.Node.ReservedMemoryBytes, 10)}
	c.EvictionHard = map[string]string{
		"memory.available":  strconv.FormatUint(memoryReserve(plan.Node.MemoryBytes), 10),
		"nodefs.available":  diskReserve,
		"imagefs.available": diskReserve,
		"nodefs.inodesFree": "1%",
	}
	c.EvictionPressureTransitionPeriod = metav1.Duration{Duration: pressureTransition}
	// Images from archives cannot be pulled again, so none are removed.
	c.ImageGCHighThresholdPercent = 100
	c.ContainerLogMaxSize, c.ContainerLogMaxFiles = logMaxSize, logMaxFiles
	c.SerializeImagePulls = false
	c.RegistryPullQPS = 0

	c.CgroupDriver = "cgroupfs"
	c.FailSwapOn = false
	c.FailCgroupV1 = false
	c.MakeIPTablesUtilChains = false
	c.ProtectKernelDefaults = false
	if plan.CgroupsDelegated {
		c.CgroupsPerQOS = true
		c.CgroupRoot = "/"
		c.EnforceNodeAllocatable = []string{"pods"}
	} else {
		c.CgroupsPerQOS = false
		c.EnforceNodeAllocatable = []string{}
		// CPU quotas are left on. Nobody enforces them, as an event of notices
		// reports, but a pod's status then shows its limits.
	}
	return s, nil
}

// memoryReserve returns the free memory in bytes below which the kubelet evicts:
// a twentieth of the node, within bounds.
func memoryReserve(capacity uint64) uint64 {
	return min(max(capacity/20, 64<<20), 512<<20)
}

// openFiles returns the number of files that the process may open. The kubelet's
// default is above the hard limit of an ordinary user.
func openFiles() int64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Max > 1<<20 {
		return 1 << 20
	}
	return int64(limit.Max)
}
