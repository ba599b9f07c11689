package launch

import (
	"fmt"
	"net/netip"
	"os"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/linux"
	"berth.dev/berth/internal/pki"
	"berth.dev/berth/internal/sandbox"
)

// identities are the keys of a cluster: files for the sandbox's tmpfs, and the
// user's own kubeconfig.
type identities struct {
	files map[string]sandbox.File
	// kubeconfig reaches the API server from the host. It names the key by a
	// path of this process: see userKubeconfig.
	kubeconfig []byte
	// own is the same with the key in it, for this process.
	own []byte
	// key keeps the user's key.
	key *os.File
}

// makeIdentities makes every key of the cluster. Each component gets one of
// its own; only the node's kubelet may act as the node.
func makeIdentities(plan cluster.Plan) (identities, error) {
	maker := &identityMaker{plan: plan, files: map[string]sandbox.File{}}
	authority := maker.authority(cluster.CA, "kubernetes-ca")
	frontProxy := maker.authority(cluster.FrontProxyCA, "front-proxy-ca")
	serviceTokens, err := pki.NewKey()
	maker.note(err)
	maker.write(plan.Paths.PKI(cluster.ServiceTokens+".key"), serviceTokens)
	if maker.err != nil {
		return identities{}, maker.err
	}

	addresses := plan.Addresses
	maker.issue(frontProxy, cluster.FrontProxy, pki.Identity{CommonName: "front-proxy-client"})
	maker.issue(authority, cluster.APIServer, pki.Identity{
		CommonName: "kube-apiserver",
		Names: []string{
			"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local", plan.Node.Name,
		},
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), addresses.APIService, addresses.Node},
	})
	maker.issue(authority, cluster.APIKubelet, pki.Identity{CommonName: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}})
	maker.issue(authority, cluster.KubeletServer, pki.Identity{
		CommonName: "system:node:" + plan.Node.Name, Groups: []string{"system:nodes"},
		Names: []string{plan.Node.Name}, Addresses: []netip.Addr{addresses.Node},
	})

	inside := addresses.APIServerURL()
	maker.client(authority, cluster.UserControllerManager, inside, pki.Identity{CommonName: "system:kube-controller-manager"})
	maker.client(authority, cluster.UserScheduler, inside, pki.Identity{CommonName: "system:kube-scheduler"})
	maker.client(authority, cluster.UserKubelet, inside, pki.Identity{CommonName: "system:node:" + plan.Node.Name, Groups: []string{"system:nodes"}})
	maker.client(authority, cluster.UserProxy, inside, pki.Identity{CommonName: "system:kube-proxy"})
	maker.client(authority, cluster.UserDNS, inside, pki.Identity{CommonName: "system:" + cluster.UserDNS})
	maker.client(authority, cluster.UserProvisioner, inside, pki.Identity{CommonName: "system:" + cluster.UserProvisioner})
	admin := pki.Identity{CommonName: "berth:admin", Groups: []string{"system:masters"}}
	maker.client(authority, cluster.UserAdmin, inside, admin)
	if maker.err != nil {
		return identities{}, maker.err
	}
	pair, err := authority.Issue(admin)
	if err != nil {
		return identities{}, err
	}
	server := addresses.HostAPIServerURL()
	kubeconfig, key, err := userKubeconfig(server, authority.Cert, pair)
	if err != nil {
		return identities{}, err
	}
	return identities{
		files:      maker.files,
		own:        pki.Kubeconfig("berth", server, authority.Cert, pair),
		kubeconfig: kubeconfig,
		key:        key,
	}, nil
}

// userKubeconfig is what the user's programs get. The key is not in the file,
// which would outlive a run that is killed all at once, but in the memory of
// this process, and its name is a path to there.
func userKubeconfig(server string, authority []byte, pair pki.Pair) ([]byte, *os.File, error) {
	key, err := linux.MemoryFile("berth-key", pair.Key)
	if err != nil {
		return nil, nil, err
	}
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), key.Fd())
	return pki.KubeconfigWithKeyFile("berth", server, authority, pair.Cert, path), key, nil
}

// identityMaker collects files, and the first error, after which it does
// nothing more.
type identityMaker struct {
	plan  cluster.Plan
	files map[string]sandbox.File
	err   error
}

func (m *identityMaker) note(err error) {
	if m.err == nil {
		m.err = err
	}
}

func (m *identityMaker) write(path string, content []byte) {
	m.files[path] = sandbox.File{Mode: 0o600, Content: content}
}

func (m *identityMaker) pair(name string, pair pki.Pair) {
	m.write(m.plan.Paths.PKI(name+".crt"), pair.Cert)
	m.write(m.plan.Paths.PKI(name+".key"), pair.Key)
}

func (m *identityMaker) authority(name, commonName string) *pki.Authority {
	authority, err := pki.NewAuthority(commonName)
	if err != nil {
		m.note(err)
		return nil
	}
	m.pair(name, authority.Pair)
	return authority
}

func (m *identityMaker) issue(authority *pki.Authority, name string, id pki.Identity) {
	pair, err := authority.Issue(id)
	m.note(err)
	m.pair(name, pair)
}

func (m *identityMaker) client(authority *pki.Authority, user, server string, id pki.Identity) {
	pair, err := authority.Issue(id)
	m.note(err)
	m.write(m.plan.Paths.Kubeconfig(user), pki.Kubeconfig("berth", server, authority.Cert, pair))
}
