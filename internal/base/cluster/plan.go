package cluster

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

// Plan describes one node of a cluster. The supervisor makes it once, before
// anything starts, and every role reads it as JSON from Paths.Plan. It contains no
// secrets: keys have their own files.
type Plan struct {
	// RunID identifies this cluster among all that ever ran on the node:
	// "job-4711-0" under Slurm, "local-<pid>-<start>" otherwise.
	RunID string
	// KubernetesVersion is the version that the components report, such as
	// "v1.36.3".
	KubernetesVersion string
	Node              Node
	// Members lists all nodes of the cluster, with this one at Index. The first is
	// the head.
	Members []Member
	// Seats is the number of places for nodes of other jobs. A node in a seat has an
	// Index after all Members, and is not in Members.
	Seats int
	// SubmitsPilots reports whether the cluster submits jobs whose nodes take seats.
	SubmitsPilots bool
	Index         int
	// Controls is the number of members that run a control plane, counted from
	// the first: 1, or ControlNodes with --ha.
	Controls  int
	Addresses Addresses
	Paths     Paths
	// OneUID is true if the user has no subordinate UIDs. Then every file and every
	// process of a pod belongs to the user.
	OneUID bool
	// CgroupsDelegated is true if a writable cgroup v2 subtree is mounted at
	// Paths.Cgroup, with the memory and cpu controllers.
	CgroupsDelegated bool
	// PodMTU is the size of the largest packet that a pod sends, in bytes.
	PodMTU int
	// PodSuperPacket is the size of the largest packet that a pod's kernel may
	// leave unsegmented, in bytes, so that the network between nodes takes it in
	// one piece. It is 0 if there is no such network.
	PodSuperPacket int
	// FastPath is true if this node has a Switch, which gives pods sockets of the
	// host's network for connections to other nodes and to the outside.
	FastPath bool
	// Snapshotter is the snapshotter of containerd: Overlay, EROFS, or Native if
	// overlayfs cannot write to the file system of the run's files.
	Snapshotter string
	// ImageCache is the folder that keeps layers for other nodes and later runs.
	ImageCache ImageCache
	// ImageBudget multiplies the limits on what an image may contain.
	ImageBudget int
	// LazyPull starts containers of eStargz images before their layers have
	// arrived.
	LazyPull bool
	// Registries configures how images are pulled.
	Registries Registries
	// SharedVolumes is a folder that all nodes see, for the volumes of SharedClass.
	// It is empty if the user named none.
	SharedVolumes string
	// Mounts lists folders of the hosts that every pod gets.
	Mounts []FolderMount
	// ForeignOwners lets users of pods other than root write to file systems that
	// machines share.
	ForeignOwners bool
}

// Node is one Kubernetes node: the share of an allocation on one host.
type Node struct {
	// Name is the Kubernetes node name, a valid DNS subdomain.
	Name string
	// Labels are added to the kubelet's own labels.
	Labels map[string]string
	// CPUs is the number of processors that the step may use.
	CPUs int
	// CPUSet lists these processors (2-5,8). It is empty if they are unknown.
	CPUSet string
	// MemoryBytes is the memory that the step may use.
	MemoryBytes uint64
	// ReservedMemoryBytes is the memory that berth itself needs. The rest is
	// allocatable.
	ReservedMemoryBytes uint64
	// MaxPods bounds the pods of the node.
	MaxPods int
	// Resources lists devices that containers can request.
	Resources []Resource
}

// Head reports whether this is the first node, which leads the run.
func (p Plan) Head() bool { return p.Index == 0 }

// Control reports whether this node runs a control plane.
func (p Plan) Control() bool { return p.Index < max(1, p.Controls) }

// Replicated reports whether several nodes run a control plane.
func (p Plan) Replicated() bool { return p.Controls > 1 }

// Several reports whether the cluster has, or may get, more than one node.
func (p Plan) Several() bool { return len(p.Members)+p.Seats > 1 }

// Places returns the members and then the seats. The node with an index has the place at
// that index. The addresses of a seat follow from its index, so the plan does not list
// them: one message has the plan, and there may be thousands of seats.
func (p Plan) Places() []Member {
	places := slices.Grow(slices.Clone(p.Members), p.Seats)
	for seat := range p.Seats {
		places = append(places, p.Addresses.place(len(p.Members)+seat))
	}
	return places
}

// Replicas returns the members that run a control plane.
func (p Plan) Replicas() []Member { return p.Members[:p.Controls] }

// Addresses holds the addresses of a cluster. They conflict with no route of the
// host, and exist only inside the node's network namespace.
type Addresses struct {
	// Family is the IPv4 family, which every cluster has.
	Family
	// IPv6 is nil if the cluster has only IPv4. WithoutIPv6 is the reason for that, or
	// the reason why IPv6 does not reach the outside. It is empty if the user asked
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
	// HostAPIPort is the port of kube-apiserver on the host's loopback.
	HostAPIPort uint16
}

// Family holds the addresses of one IP family.
type Family struct {
	// Pods is the range of all pods of the cluster. NodePods is the part of it for
	// the pods of this node.
	Pods, NodePods netip.Prefix
	// Services is the ClusterIP range.
	Services netip.Prefix
	// Nodes is the range of node addresses. Node is this node's address, on
	// NodeLink.
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

// Ranges returns all ranges of the cluster: of pods, Services and nodes.
func (a Addresses) Ranges() []netip.Prefix {
	var all []netip.Prefix
	for _, f := range a.Families() {
		all = append(all, f.Pods, f.Services, f.Nodes)
	}
	return all
}

// NodeAddresses returns the addresses of all nodes in one family, the head's first.
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

// Peers returns the addresses (host:port) where the nodes serve layers to each
// other, in the order of the members. It returns none if there is only one node, or if
// this node has a seat: the others do not know when it leaves.
func (p Plan) Peers() []string {
	var all []string
	if len(p.Members) > 1 && p.Index < len(p.Members) {
		for _, address := range p.NodeAddresses(p.Addresses.Family) {
			all = append(all, netip.AddrPortFrom(address, peerPort).String())
		}
	}
	return all
}

// List calls of for each family, IPv4 first, and joins the results with commas, as
// the options of Kubernetes' components expect.
func (a Addresses) List(of func(Family) string) string {
	var all []string
	for _, family := range a.Families() {
		all = append(all, of(family))
	}
	return strings.Join(all, ",")
}

// The snapshotters. Overlay and EROFS share the layers of images between
// containers: Overlay as unpacked files, and EROFS as one file per layer. Native
// copies the layers for each container.
const (
	Overlay = "overlayfs"
	EROFS   = "erofs"
	Native  = "native"
	// autoSnapshotter selects EROFS on nodes that can mount FUSE, and Overlay on
	// others.
	autoSnapshotter = "auto"
)

// ImageCache is a folder of layers that the nodes and runs of a user share.
type ImageCache struct {
	// Folder is empty if there is no cache.
	Folder string
	// Job names the folder of links to the layers that this node uses while it
	// runs.
	Job string
	// Bytes limits the cache's size. With KeepNamed, images that the user added by
	// name do not count.
	Bytes     int64
	KeepNamed bool
}

// ImageCacheBytes is the default size limit of an image cache.
const ImageCacheBytes = 10e9

// InUse returns the folder that protects the layers in use by this node. It is
// removed when the node ends. Without a cache, InUse returns "".
func (c ImageCache) InUse() string {
	if c.Folder == "" {
		return ""
	}
	return filepath.Join(c.Folder, "layers-1", "jobs", c.Job)
}

// The links inside the node's network namespace.
const (
	// NodeLink carries the node's own addresses. It is a bridge without
	// ports, because the dummy device is a module that a host may lack.
	NodeLink = "node0"
	// EgressLink is the TUN device towards the outside world.
	EgressLink = "out0"
	// OverlayLink is the TUN device towards the other nodes.
	OverlayLink = "mesh0"
	// PodBridge is the bridge that connects pods.
	PodBridge = "pods0"
)

// Paths lists the places where a role finds and keeps its files. All but Scratch
// and Libexec exist only inside the mount namespace.
type Paths struct {
	// Libexec holds the programs that come with berth; it is the whole PATH
	// of every role.
	Libexec string
	// Run is a tmpfs for keys, kubeconfigs, sockets and etcd's data. Nothing in it
	// outlives the cluster.
	Run string
	// Scratch is the run's directory on the node's disk, for images, container root
	// file systems, volumes and logs. It contains no secrets.
	Scratch string
	// Kubelet is the kubelet's root directory, bound from Scratch. It is the
	// conventional path, because CSI drivers and device plugins assume it.
	Kubelet string
	// Cgroup is the mount point of a cgroup2 hierarchy. It is empty if none is
	// delegated.
	Cgroup string
}

// PKI and the methods below return the absolute paths of a node's files and sockets.
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

// Unwritten returns the directory of counts of the output that containerd could not
// write to the logs. Its files have the same names as below PodLogs.
func (p Paths) Unwritten() string { return filepath.Join(p.Run, "unwritten") }
func (p Paths) Restore() string   { return filepath.Join(p.Run, "restore") }
func (p Paths) Plan() string      { return filepath.Join(p.Run, "plan.json") }

// LocalClass is the default StorageClass, whose volumes are directories of nodes. SharedClass is the
// StorageClass for claims on the folder that all nodes see, and SharedProvisioner makes its volumes.
const (
	LocalClass        = "local"
	SharedClass       = "shared"
	SharedProvisioner = "berth.dev/shared"
)

// Names of the files under Paths.PKI. Certificates end in .crt, keys in .key.
const (
	CA            = "ca"             // signs everything below, except FrontProxyCA's certificates
	FrontProxyCA  = "front-proxy-ca" // signs FrontProxy
	FrontProxy    = "front-proxy-client"
	APIServer     = "apiserver"
	APIKubelet    = "apiserver-kubelet-client"
	ServiceTokens = "service-accounts" // .key only, ECDSA
	EtcdCA        = "etcd-ca"          // signs EtcdPeer of each member
	EtcdPeer      = "etcd-peer"
	KubeletServer = "kubelet-server"
	JobLogs       = "job-logs" // the server for the logs of Slurm jobs, which has no rights
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
	// NoPull forbids the network. Then only images from archives are available.
	NoPull bool
	// Mirror is the address (host:port) of the local mirror that serves the
	// archives' images. containerd tries it first. It is empty if none runs.
	Mirror string
	// Servers maps registry names, such as docker.io or registry.site:5000, to the
	// URLs that replace them.
	Servers map[string]string
}

// MirrorAddress is the mirror's address inside the namespace. Only the node's
// programs and pods on the node's network can reach this loopback. The port is
// outside the ranges that Kubernetes assigns.
const MirrorAddress = "127.0.0.1:61500"

// peerPort is the port where the nodes of a multi-node cluster serve layers to each
// other, at their node addresses. It is also outside the ranges that Kubernetes
// assigns.
const peerPort = 61501

// APIServerURL returns the API server's URL for components inside the namespace.
func (a Addresses) APIServerURL() string {
	if a.APIBalancer.IsValid() {
		return fmt.Sprintf("https://%s", a.APIBalancer)
	}
	return fmt.Sprintf("https://%s", netip.AddrPortFrom(a.APIServer, a.APIPort))
}

// HostAPIServerURL returns the API server's URL for programs on the host.
func (a Addresses) HostAPIServerURL() string {
	return fmt.Sprintf("https://127.0.0.1:%d", a.HostAPIPort)
}

// KubernetesVersion is the version of the components. go.mod pins the same version.
const KubernetesVersion = "v1.36.3"

// SplitLogsGate is the feature gate (alpha in v1.36) that lets a client read a
// container's log as two streams, so that berth can pass a workload's
// standard error on to its own. The API server and the kubelet both need it.
const SplitLogsGate = "PodLogsQuerySplitStreams"
