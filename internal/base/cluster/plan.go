package cluster

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
)

// Plan describes one node of a cluster. The supervisor makes it once, before
// anything starts, and every role reads it as JSON (Sandbox.PlanFile). It holds
// no secret: keys have their own files.
type Plan struct {
	// RunID names this cluster among all that ever ran on the node:
	// "job-4711-0" under Slurm, "local-<pid>-<start>" without.
	RunID string
	// KubernetesVersion is the version that the components report, such as
	// "v1.36.3".
	KubernetesVersion string
	Node              Node
	// Members are all nodes of the cluster, this one at Index. The first is
	// the head.
	Members []Member
	Index   int
	// Controls is the number of members that run a control plane, counted from
	// the first: 1, or ControlNodes with --ha.
	Controls  int
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
	// PodSuperPacket is the size of the largest packet that a pod's kernel may
	// leave uncut, in bytes, so that the network between nodes takes it in one
	// piece; 0 where there is none.
	PodSuperPacket int
	// FastPath is true where a Switch makes connections of pods to other nodes.
	FastPath bool
	// Snapshotter is containerd's: Overlay, EROFS, or Native where the run's
	// files are on a file system that overlayfs cannot write to.
	Snapshotter string
	// ImageCache is the folder that keeps layers for other nodes and later runs.
	ImageCache ImageCache
	// LazyPull starts containers of eStargz images before these have come.
	LazyPull bool
	// Registries configures how images are pulled.
	Registries Registries
	// SharedVolumes is a folder that all nodes see, for the volumes of
	// SharedClass; empty where the user names none.
	SharedVolumes string
	// Mounts are folders of the hosts that every pod gets.
	Mounts []FolderMount
	// ForeignOwners lets users of pods other than root write to file systems
	// that machines share.
	ForeignOwners bool
	// Verbosity is the klog level of the components; 0 logs problems only.
	Verbosity int
}

// Node is one Kubernetes node: the share of an allocation on one host.
type Node struct {
	// Name is the Kubernetes node name, a valid DNS subdomain.
	Name string
	// Labels are added to the kubelet's own labels.
	Labels map[string]string
	// CPUs is the number of processors that the step may use.
	CPUs int
	// CPUSet lists these processors (2-5,8) where it is known which they are;
	// it is empty elsewhere.
	CPUSet string
	// MemoryBytes is the memory that the step may use.
	MemoryBytes uint64
	// ReservedMemoryBytes is the memory that berth itself needs; the rest is
	// allocatable.
	ReservedMemoryBytes uint64
	// MaxPods bounds the pods of the node.
	MaxPods int
	// Resources are devices that containers can request.
	Resources []Resource
}

// Head reports whether this is the first node, which leads the run.
func (p Plan) Head() bool { return p.Index == 0 }

// Control reports whether this node runs a control plane.
func (p Plan) Control() bool { return p.Index < max(1, p.Controls) }

// Replicated reports whether other nodes run a control plane, too.
func (p Plan) Replicated() bool { return p.Controls > 1 }

// Replicas are the members that run a control plane.
func (p Plan) Replicas() []Member { return p.Members[:p.Controls] }

// Addresses are chosen so that they clash with no route of the host. All of
// them exist only inside the node's network namespace.
type Addresses struct {
	// Family is IPv4, which every cluster has.
	Family
	// IPv6 is nil if the cluster has only IPv4. WithoutIPv6 is the reason, or the
	// reason why IPv6 does not reach the outside. It is empty if the user asked
	// for IPv4, or if IPv6 reaches the outside.
	IPv6        *Family
	WithoutIPv6 string
	// APIService is the first address of Services (Service
	// default/kubernetes), DNSService the tenth (kube-dns).
	APIService, DNSService netip.Addr
	// APIServer is the head's node address.
	APIServer netip.Addr
	// APIBalancer is the address where the node's clients reach whichever API
	// server is healthy. It is invalid if there is only one API server.
	APIBalancer netip.AddrPort
	// DNS is the address on NodeLink where CoreDNS listens, on port 53.
	DNS netip.Addr
	// Gateway is the far end of EgressLink: the default route, and a DNS
	// forwarder on port 53 that asks the host's own resolvers.
	Gateway netip.Addr
	// APIPort is the port of kube-apiserver inside the namespace.
	APIPort uint16
	// HostAPIPort is its port on the host's loopback.
	HostAPIPort uint16
}

// Family are the addresses of one IP family.
type Family struct {
	// Pods is the range of all pods of the cluster; NodePods this node's part.
	Pods, NodePods netip.Prefix
	// Services is the ClusterIP range.
	Services netip.Prefix
	// Nodes is the range of node addresses; Node is this node's, on NodeLink.
	Nodes netip.Prefix
	Node  netip.Addr
}

// Name returns Kubernetes' name for the family.
func (f Family) Name() string {
	if f.Node.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// Families returns the cluster's families, IPv4 first.
func (a Addresses) Families() []Family {
	if a.IPv6 == nil {
		return []Family{a.Family}
	}
	return []Family{a.Family, *a.IPv6}
}

// Ranges are all that the cluster takes: of pods, Services and nodes.
func (a Addresses) Ranges() []netip.Prefix {
	var all []netip.Prefix
	for _, f := range a.Families() {
		all = append(all, f.Pods, f.Services, f.Nodes)
	}
	return all
}

// NodeAddresses returns the addresses of all nodes in one family, the head's
// first.
func (p Plan) NodeAddresses(f Family) []netip.Addr {
	var all []netip.Addr
	for _, member := range p.Members {
		for _, prefix := range member.Prefixes {
			if prefix.IsSingleIP() && f.Nodes.Contains(prefix.Addr()) {
				all = append(all, prefix.Addr())
			}
		}
	}
	return all
}

// Peers are host:port of where the nodes give layers to each other, in the order
// of the members; none where there is one node only.
func (p Plan) Peers() []string {
	var all []string
	if len(p.Members) > 1 {
		for _, address := range p.NodeAddresses(p.Addresses.Family) {
			all = append(all, netip.AddrPortFrom(address, PeerPort).String())
		}
	}
	return all
}

// List joins something of every family with commas, as components take it.
func (a Addresses) List(of func(Family) string) string {
	var all []string
	for _, family := range a.Families() {
		all = append(all, of(family))
	}
	return strings.Join(all, ",")
}

// The snapshotters: Overlay and EROFS share the layers of images between
// containers, unpacked and as one file each. Native copies them for each.
const (
	Overlay = "overlayfs"
	EROFS   = "erofs"
	Native  = "native"
	// AutoSnapshotter is EROFS on nodes that can mount with FUSE, Overlay on others.
	AutoSnapshotter = "auto"
)

// ImageCache is a folder of layers that the nodes and runs of a user share.
type ImageCache struct {
	// Folder is empty where there is none.
	Folder string
	// Job is the name of what this node uses there for as long as it runs.
	Job string
	// Bytes limits the cache's size. With KeepNamed, images that the user brought
	// by name do not count.
	Bytes     int64
	KeepNamed bool
}

// ImageCacheBytes is the default size limit of an image cache.
const ImageCacheBytes = 10e9

// InUse is the folder of what this node uses of the cache, to be removed when
// it ends; empty where there is no cache.
func (c ImageCache) InUse() string {
	if c.Folder == "" {
		return ""
	}
	return filepath.Join(c.Folder, "layers-1", "jobs", c.Job)
}

// Links inside the node's network namespace.
const (
	// NodeLink carries the node's own addresses. It is a bridge without
	// ports, because the dummy device is a module that a host may lack.
	NodeLink = "node0"
	// EgressLink is the TUN device towards the outside world.
	EgressLink = "out0"
	// MeshLink is the TUN device towards the other nodes.
	MeshLink = "mesh0"
	// PodBridge is the bridge that connects pods.
	PodBridge = "pods0"
)

// Paths lists the places where a role finds and keeps its files. All but Scratch
// and Libexec exist only inside the mount namespace.
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
	// Cgroup is the mount point of a cgroup2 hierarchy; empty unless it is
	// delegated.
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
func (p Paths) CDI() string             { return filepath.Join(p.Run, "cdi") }
func (p Paths) Notices() string         { return filepath.Join(p.Run, "notices") }
func (p Paths) CPUsInUse() string       { return filepath.Join(p.Run, "cpus-in-use") }
func (p Paths) DevicePlugins() string   { return filepath.Join(p.Kubelet, "device-plugins") }
func (p Paths) RegistryHosts() string   { return filepath.Join(p.Run, "registry-hosts") }
func (p Paths) Volumes() string         { return filepath.Join(p.Scratch, "volumes") }
func (p Paths) PodLogs() string         { return filepath.Join(p.Scratch, "pod-logs") }
func (p Paths) Corefile() string        { return filepath.Join(p.Run, "Corefile") }
func (p Paths) ResolvConf() string      { return filepath.Join(p.Run, "resolv.conf") }
func (p Paths) FastPath() string        { return filepath.Join(p.Run, "fast-path.sock") }
func (p Paths) LogSocket() string       { return filepath.Join(p.Run, "logs.sock") }
func (p Paths) Restore() string         { return filepath.Join(p.Run, "restore") }
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
	EtcdCA        = "etcd-ca"          // signs EtcdPeer of each member
	EtcdPeer      = "etcd-peer"
	KubeletServer = "kubelet-server"
	PeersCA       = "peers-ca" // signs Peers, which all nodes have
	Peers         = "peers"
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

// Registries configures how images are pulled.
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

// MirrorAddress is the mirror's address inside the namespace. Only the
// node's programs and pods on the node's network reach its loopback. The port is
// outside the ranges that Kubernetes assigns.
const MirrorAddress = "127.0.0.1:61500"

// PeerPort is the port where each node of several serves layers to the others,
// at its node address. It, too, is outside the ranges that Kubernetes assigns.
const PeerPort = 61501

// APIServerURL is the API server's URL for components inside the namespace.
func (a Addresses) APIServerURL() string {
	if a.APIBalancer.IsValid() {
		return fmt.Sprintf("https://%s", a.APIBalancer)
	}
	return fmt.Sprintf("https://%s", netip.AddrPortFrom(a.APIServer, a.APIPort))
}

// HostAPIServerURL is the API server's URL for programs on the host.
func (a Addresses) HostAPIServerURL() string {
	return fmt.Sprintf("https://127.0.0.1:%d", a.HostAPIPort)
}

// KubernetesVersion is the version of the components; go.mod pins the same.
const KubernetesVersion = "v1.36.3"

// SplitLogsGate is the feature gate (alpha in v1.36) that lets a client read a
// container's log as two streams, so that a workload's standard error reaches
// the user's. The API server and the kubelet both need it.
const SplitLogsGate = "PodLogsQuerySplitStreams"
