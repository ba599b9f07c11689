package cluster

import (
	"fmt"
	"net/netip"
	"path/filepath"
)

// Plan says what one cluster looks like on one node. The supervisor makes it
// once, before anything starts, and every role reads it as JSON
// (Sandbox.PlanFile). It holds no secret: keys are files of their own.
type Plan struct {
	// RunID names this cluster among all that ever ran on the node:
	// "job-4711-0" under Slurm, "local-<pid>-<start>" without.
	RunID string
	// KubernetesVersion is what the components report, such as "v1.36.3".
	KubernetesVersion string
	Node              Node
	// Members are all nodes of the cluster, this one at Index. The first is
	// the head.
	Members   []Member
	Index     int
	Addresses Addresses
	Paths     Paths
	// OneUID is true where no subordinate uids exist: every file and every
	// process of a pod belongs to the user.
	OneUID bool
	// CgroupsDelegated is true where a writable cgroup v2 subtree is mounted
	// at Paths.Cgroup, with the memory and cpu controllers.
	CgroupsDelegated bool
	// PodMTU is the size of the largest packet that a pod sends, in bytes.
	PodMTU int
	// Snapshotter is containerd's: Overlay, or Native where the run's files
	// are on a file system that overlayfs cannot write to.
	Snapshotter string
	// Registries says how images are pulled.
	Registries Registries
	// SharedVolumes is a folder that all nodes see, for the volumes of
	// SharedClass; empty where the user names none.
	SharedVolumes string
	// Verbosity is the klog level of the components; 0 logs problems only.
	Verbosity int
}

// Node is one Kubernetes node: the share of an allocation on one host.
type Node struct {
	// Name is the Kubernetes node name, a valid DNS subdomain.
	Name string
	// Labels are added to those that the kubelet sets itself.
	Labels map[string]string
	// CPUs is the number of processors that the step may use.
	CPUs int
	// MemoryBytes is the memory that the step may use.
	MemoryBytes uint64
	// ReservedMemoryBytes is what berth itself needs of it; allocatable is
	// the difference.
	ReservedMemoryBytes uint64
	// MaxPods bounds the pods of the node.
	MaxPods int
}

// Head tells whether this node runs the control plane.
func (p Plan) Head() bool { return p.Index == 0 }

// Addresses are chosen so that they clash with no route of the host. All of
// them exist only inside the node's network namespace.
type Addresses struct {
	// Pods is the range of all pods of the cluster; NodePods this node's part.
	Pods, NodePods netip.Prefix
	// Services is the ClusterIP range. APIService is its first address
	// (Service default/kubernetes), DNSService its tenth (kube-dns).
	Services               netip.Prefix
	APIService, DNSService netip.Addr
	// Nodes is the range of node addresses; Node is this node's, on NodeLink.
	Nodes netip.Prefix
	Node  netip.Addr
	// APIServer is the head's node address.
	APIServer netip.Addr
	// DNS is the address on NodeLink where CoreDNS listens, on port 53.
	DNS netip.Addr
	// Gateway is the far end of EgressLink: the default route, and a DNS
	// forwarder on port 53 that asks the host's own resolvers.
	Gateway netip.Addr
	// APIPort is where kube-apiserver listens inside the namespace.
	APIPort uint16
	// HostAPIPort is where it is reached on the host's loopback.
	HostAPIPort uint16
}

// The snapshotters: Overlay shares the layers of images between containers,
// Native copies them for each.
const (
	Overlay = "overlayfs"
	Native  = "native"
)

// Links inside the node's network namespace.
const (
	// NodeLink carries the node's own addresses. It is a bridge without
	// ports, because the dummy device is a module that a host may lack.
	NodeLink = "node0"
	// EgressLink is the TUN device towards the outside world.
	EgressLink = "out0"
	// MeshLink is the TUN device towards the other nodes.
	MeshLink = "mesh0"
	// PodBridge is where the bridge plugin attaches pods.
	PodBridge = "pods0"
)

// Paths are where a role finds and keeps things. All but Scratch and Libexec
// exist only inside the mount namespace.
type Paths struct {
	// Libexec holds the programs that come with berth; it is the whole PATH
	// of every role.
	Libexec string
	// Run is a tmpfs: keys, kubeconfigs, sockets, etcd's data. Nothing in it
	// outlives the cluster.
	Run string
	// Scratch is the run's directory on the node's disk: images, container
	// root file systems, volumes, logs. It holds no secret.
	Scratch string
	// Kubelet is the kubelet's root directory, bound from Scratch. It is the
	// conventional path, because CSI drivers and device plugins assume it.
	Kubelet string
	// Cgroup is where a cgroup2 hierarchy is mounted, empty unless delegated.
	Cgroup string
}

// The files and sockets of a node, derived from its Paths.
func (p Paths) PKI(name string) string        { return filepath.Join(p.Run, "pki", name) }
func (p Paths) Kubeconfig(user string) string { return filepath.Join(p.Run, "kubeconfig", user) }
func (p Paths) Etcd() string                  { return filepath.Join(p.Run, "etcd") }
func (p Paths) CNIConfig() string             { return filepath.Join(p.Run, "cni", "net.d") }
func (p Paths) CNIPlugins() string            { return filepath.Join(p.Libexec, "cni") }
func (p Paths) ContainerdConfig() string      { return filepath.Join(p.Run, "containerd.toml") }
func (p Paths) ContainerdSocket() string {
	return filepath.Join(p.Run, "containerd", "containerd.sock")
}
func (p Paths) ContainerdState() string { return filepath.Join(p.Run, "containerd") }
func (p Paths) ContainerdRoot() string  { return filepath.Join(p.Scratch, "containerd") }
func (p Paths) RegistryHosts() string   { return filepath.Join(p.Run, "registry-hosts") }
func (p Paths) Volumes() string         { return filepath.Join(p.Scratch, "volumes") }
func (p Paths) PodLogs() string         { return filepath.Join(p.Scratch, "pod-logs") }
func (p Paths) Corefile() string        { return filepath.Join(p.Run, "Corefile") }
func (p Paths) ResolvConf() string      { return filepath.Join(p.Run, "resolv.conf") }
func (p Paths) Plan() string            { return filepath.Join(p.Run, "plan.json") }

// SharedClass is the StorageClass of claims on the folder that all nodes see,
// and SharedProvisioner who makes its volumes.
const (
	SharedClass       = "shared"
	SharedProvisioner = "berth.dev/shared"
)

// Names of the files under Paths.PKI. Certificates end in .crt, keys in .key.
const (
	CA            = "ca"             // signs everything below but FrontProxyCA's
	FrontProxyCA  = "front-proxy-ca" // signs FrontProxy
	FrontProxy    = "front-proxy-client"
	APIServer     = "apiserver"
	APIKubelet    = "apiserver-kubelet-client"
	ServiceTokens = "service-accounts" // .key only, ECDSA
	KubeletServer = "kubelet-server"
)

// Names of the kubeconfigs under Paths.Kubeconfig.
const (
	UserAdmin             = "admin" // group system:masters
	UserControllerManager = "controller-manager"
	UserScheduler         = "scheduler"
	UserKubelet           = "kubelet" // system:node:<name>, group system:nodes
	UserProxy             = "kube-proxy"
	UserDNS               = "coredns"     // system:coredns
	UserProvisioner       = "provisioner" // system:provisioner
)

// Registries says how images are pulled.
type Registries struct {
	// NoPull forbids the network: only images given as archives exist.
	NoPull bool
	// Mirror is host:port of the local mirror that serves the archives'
	// images, asked before any registry; empty where none runs.
	Mirror string
	// Servers are URLs by the name of the registry that they stand for, such
	// as docker.io or registry.site:5000.
	Servers map[string]string
}

// MirrorAddress is where the mirror listens, inside the namespace: on the
// loopback, where only the node's own programs and pods on the node's network
// are, at a port outside of those that are given out.
const MirrorAddress = "127.0.0.1:61500"

// APIServerURL is where components inside the namespace reach the API server.
func (a Addresses) APIServerURL() string {
	return fmt.Sprintf("https://%s", netip.AddrPortFrom(a.APIServer, a.APIPort))
}

// HostAPIServerURL is where programs on the host reach it.
func (a Addresses) HostAPIServerURL() string {
	return fmt.Sprintf("https://127.0.0.1:%d", a.HostAPIPort)
}

// KubernetesVersion is the version of the components; go.mod pins the same.
const KubernetesVersion = "v1.36.3"

// SplitLogsGate is the feature gate (alpha in v1.36) by which the log of a
// container can be read as its two streams: a workload's standard error then
// reaches the user's. The API server and the kubelet both need it.
const SplitLogsGate = "PodLogsQuerySplitStreams"
