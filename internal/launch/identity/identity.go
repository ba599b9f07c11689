// Package identity makes the keys and certificates of one cluster: files for the
// nodes' sandboxes, and the user's kubeconfig. How they reach other nodes does not
// belong here.
package identity

import (
	"fmt"
	"net/netip"
	"os"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/base/pki"
	"berth.dev/berth/internal/node/sandbox"
)

// Set holds the keys of a cluster: files for the nodes' sandboxes, and the
// user's kubeconfig.
type Set struct {
	// Nodes holds the files for each node's tmpfs, in the order of the plans.
	Nodes []map[string]sandbox.File
	// Kubeconfig is for programs on the head's host. It refers to the key by a
	// path of this process; see UserKubeconfig.
	Kubeconfig []byte
	// Owns holds kubeconfigs that contain the key, for the processes of the nodes
	// with a control plane, in the order of the plans. They are nil for other
	// nodes.
	Owns [][]byte
	// Key is the memory file with the user's key.
	Key *os.File
	// Trust holds the keys that nodes of this cluster and their pods trust. It is empty except
	// where Make was called.
	Trust Trust
	// authority signs for nodes that join later. It is nil except where Make was called.
	authority *pki.Authority
}

// Trust holds the keys that a later control plane needs so that the nodes of a cluster, and the
// tokens of their pods, remain valid.
type Trust struct {
	Authority     pki.Pair
	ServiceTokens []byte
}

// Join creates the keys of a node that joins a cluster of Make later.
func (s Set) Join(plan cluster.Plan) (map[string]sandbox.File, error) {
	m := &maker{plan: plan, authority: s.authority, files: map[string]sandbox.File{}}
	m.node()
	return m.files, m.err
}

// Make creates all keys of the cluster. Each component of each node
// gets its own key, and only a node's kubelet may act as the node. context is the
// name of the context in the user's kubeconfig. The cluster has the keys of trust; nil makes
// new ones.
func Make(plans []cluster.Plan, context string, trust *Trust) (Set, error) {
	shared, err := makeAuthorities(trust)
	if err != nil {
		return Set{}, err
	}
	authority := shared.kubernetes
	var peers Shared
	if len(plans) > 1 {
		if peers, err = NewShared(cluster.PeersCA, cluster.Peers); err != nil {
			return Set{}, err
		}
	}
	made := Set{authority: authority, Trust: Trust{authority.Pair, shared.serviceTokens}}
	for _, plan := range plans {
		m := &maker{plan: plan, authority: authority, files: map[string]sandbox.File{}}
		m.node()
		if len(plans) > 1 {
			m.peer(peers)
		}
		if plan.Control() {
			m.control(shared)
		}
		if plan.Control() && plan.Replicated() {
			m.replica(shared)
		}
		if m.err != nil {
			return Set{}, m.err
		}
		made.Nodes = append(made.Nodes, m.files)
	}
	pair, err := authority.Issue(admin)
	if err != nil {
		return Set{}, err
	}
	made.Owns = make([][]byte, len(plans))
	for i, plan := range plans {
		if plan.Control() {
			made.Owns[i] = pki.Kubeconfig("berth", plan.Addresses.HostAPIServerURL(), authority.Cert, pair)
		}
	}
	made.Kubeconfig, made.Key, err = UserKubeconfig(context, plans[0].Addresses.HostAPIServerURL(), authority.Cert, pair)
	return made, err
}

// authorities sign the certificates that several nodes use.
type authorities struct {
	kubernetes, frontProxy, etcd *pki.Authority
	serviceTokens                []byte
}

func makeAuthorities(trust *Trust) (made authorities, err error) {
	for name, authority := range map[string]**pki.Authority{
		"kubernetes-ca": &made.kubernetes, "front-proxy-ca": &made.frontProxy, "etcd-ca": &made.etcd,
	} {
		if *authority, err = pki.NewAuthority(name); err != nil {
			return authorities{}, err
		}
	}
	if trust != nil {
		made.serviceTokens = trust.ServiceTokens
		made.kubernetes, err = pki.LoadAuthority(trust.Authority)
		return made, err
	}
	made.serviceTokens, err = pki.NewKey()
	return made, err
}

// APIServerName is in the certificate of every API server.
const APIServerName = "kubernetes.default.svc"

// KubeletClient is the name of the API servers for the kubelets.
const KubeletClient = "kube-apiserver-kubelet-client"

// admin is the identity of the cluster's user.
var admin = pki.Identity{CommonName: "berth:admin", Groups: []string{"system:masters"}}

// UserKubeconfig returns the kubeconfig for the user's programs, and the file
// with its key. The key is not in the kubeconfig, which would outlive a run that
// is killed at once. It is in the memory of this process, and the kubeconfig
// refers to it by a path.
func UserKubeconfig(context, server string, authority []byte, pair pki.Pair) ([]byte, *os.File, error) {
	key, err := linux.MemoryFile("berth-key", pair.Key)
	if err != nil {
		return nil, nil, err
	}
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), key.Fd())
	return pki.KubeconfigWithKeyFile(context, server, authority, pair.Cert, path), key, nil
}

// maker collects the files of one node, and keeps the first error.
type maker struct {
	plan      cluster.Plan
	authority *pki.Authority
	files     map[string]sandbox.File
	err       error
}

// node creates the files that every node needs.
func (m *maker) node() {
	name := "system:node:" + m.plan.Node.Name
	m.write(m.plan.Paths.PKI(cluster.CA+".crt"), m.authority.Cert)
	m.issue(m.authority, cluster.KubeletServer, pki.Identity{
		CommonName: name, Groups: []string{"system:nodes"},
		Names: []string{m.plan.Node.Name}, Addresses: []netip.Addr{m.plan.Addresses.Node},
	})
	m.client(cluster.UserKubelet, pki.Identity{CommonName: name, Groups: []string{"system:nodes"}})
	m.client(cluster.UserProxy, pki.Identity{CommonName: "system:kube-proxy"})
	m.client(cluster.UserDNS, pki.Identity{CommonName: "system:" + cluster.UserDNS})
	m.client(cluster.UserProvisioner, pki.Identity{CommonName: "system:" + cluster.UserProvisioner})
}

// control creates the files of a control plane. Only these nodes get the
// authorities' keys.
func (m *maker) control(shared authorities) {
	addresses := m.plan.Addresses
	m.write(m.plan.Paths.PKI(cluster.ServiceTokens+".key"), shared.serviceTokens)
	m.pair(cluster.CA, m.authority.Pair)
	m.pair(cluster.FrontProxyCA, shared.frontProxy.Pair)
	m.issue(shared.frontProxy, cluster.FrontProxy, pki.Identity{CommonName: "front-proxy-client"})
	m.issue(m.authority, cluster.APIServer, pki.Identity{
		CommonName: "kube-apiserver",
		Names: []string{
			"localhost", "kubernetes", "kubernetes.default", APIServerName,
			"kubernetes.default.svc.cluster.local", m.plan.Node.Name,
		},
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), addresses.APIService, addresses.Node},
	})
	m.issue(m.authority, cluster.JobLogs, pki.Identity{CommonName: "berth:job-logs", Addresses: []netip.Addr{addresses.Node}})
	m.issue(m.authority, cluster.APIKubelet, pki.Identity{CommonName: KubeletClient, Groups: []string{"system:masters"}})
	m.client(cluster.UserControllerManager, pki.Identity{CommonName: "system:kube-controller-manager"})
	m.client(cluster.UserScheduler, pki.Identity{CommonName: "system:kube-scheduler"})
	m.client(cluster.UserAdmin, admin)
}

// replica creates the files that a member of etcd needs to connect to the others.
// Only members have a certificate of that authority.
func (m *maker) replica(shared authorities) {
	m.write(m.plan.Paths.PKI(cluster.EtcdCA+".crt"), shared.etcd.Cert)
	m.issue(shared.etcd, cluster.EtcdPeer, pki.Identity{
		CommonName: m.plan.Node.Name, Addresses: []netip.Addr{m.plan.Addresses.Node},
	})
}

// Shared is a certificate for all nodes. It proves to other nodes that
// its holder is a member, but not which one. Its authority has signed nothing
// else, and the authority's key is not kept.
type Shared struct {
	Authority []byte
	Pair      pki.Pair
}

// NewShared creates an authority, has it sign one certificate for the name, and discards
// the authority's key.
func NewShared(authorityName, name string) (made Shared, err error) {
	authority, err := pki.NewAuthority(authorityName)
	if err != nil {
		return made, err
	}
	made.Authority = authority.Cert
	made.Pair, err = authority.Issue(pki.Identity{CommonName: name, Names: []string{name}})
	return made, err
}

func (m *maker) peer(shared Shared) {
	m.write(m.plan.Paths.PKI(cluster.PeersCA+".crt"), shared.Authority)
	m.pair(cluster.Peers, shared.Pair)
}

func (m *maker) note(err error) {
	if m.err == nil {
		m.err = err
	}
}

func (m *maker) write(path string, content []byte) {
	m.files[path] = sandbox.File{Mode: 0o600, Content: content}
}

func (m *maker) pair(name string, pair pki.Pair) {
	m.write(m.plan.Paths.PKI(name+".crt"), pair.Cert)
	m.write(m.plan.Paths.PKI(name+".key"), pair.Key)
}

func (m *maker) issue(authority *pki.Authority, name string, id pki.Identity) {
	pair, err := authority.Issue(id)
	m.note(err)
	m.pair(name, pair)
}

func (m *maker) client(user string, id pki.Identity) {
	pair, err := m.authority.Issue(id)
	m.note(err)
	server := m.plan.Addresses.APIServerURL()
	m.write(m.plan.Paths.Kubeconfig(user), pki.Kubeconfig("berth", server, m.authority.Cert, pair))
}
