// Package containerdconf renders the configuration of the container runtime:
// containerd, its registries and the pod network's plugins. It needs only the
// plan and touches no file. The programs that read the configuration belong to
// the runtime module.
package containerdconf

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"berth.dev/berth/internal/base/cluster"
)

// pauseImage is the image of the sandbox container. containerd has it built
// in (runtime/internal/pause); a registry is never asked for it.
const pauseImage = "localhost/berth/pause:1"

//go:embed containerd.toml.tmpl
var containerdTemplate string

// Containerd returns the text of Paths.ContainerdConfig().
func Containerd(plan cluster.Plan) []byte {
	p := plan.Paths
	return []byte(strings.NewReplacer(
		"{RUNID}", plan.RunID,
		"{ROOT}", quote(p.ContainerdRoot()),
		"{STATE}", quote(p.ContainerdState()),
		"{SOCKET}", quote(p.ContainerdSocket()),
		"{TTRPC}", quote(p.ContainerdSocket()+".ttrpc"),
		"{PEERS}", quoteAll(plan.Peers()),
		"{SELF}", strconv.Itoa(plan.Index),
		"{PEERCERT}", quote(p.PKI(cluster.Peers+".crt")),
		"{PEERKEY}", quote(p.PKI(cluster.Peers+".key")),
		"{PEERCA}", quote(p.PKI(cluster.PeersCA+".crt")),
		"{SHIMS}", quote(filepath.Join(p.ContainerdState(), "s")),
		"{ALLOWANCE}", quote(fmt.Sprintf("BERTH_MEMORY_ALLOWANCE=%d", allowance(plan.Node.ReservedMemoryBytes))),
		"{SUPERPACKET}", quote(fmt.Sprintf("BERTH_SUPER_PACKET=%d", plan.PodSuperPacket)),
		"{FASTPATH}", fastPathEnv(plan),
		"{NOTICES}", quote("BERTH_NOTICES="+p.Notices()),
		"{FOREIGNOWNERS}", quote("BERTH_FOREIGN_OWNERS="+map[bool]string{true: "yes"}[plan.ForeignOwners]),
		"{CPUS}", quote("BERTH_CPUS="+plan.Node.CPUSet),
		"{CPUCOUNT}", quote(fmt.Sprintf("BERTH_CPU_COUNT=%d", plan.Node.CPUs)),
		"{MEMORY}", quote(fmt.Sprintf("BERTH_MEMORY=%d", plan.Node.MemoryBytes-plan.Node.ReservedMemoryBytes)),
		"{CPUSINUSE}", quote("BERTH_CPUS_IN_USE="+p.CPUsInUse()),
		"{REGISTRIES}", quote(p.RegistryHosts()),
		"{MIRROR}", quote(plan.Registries.Mirror),
		"{MIRRORHOSTS}", quote(mirrorHosts(plan)),
		"{PAUSE}", quote(pauseImage),
		"{SNAPSHOTTER}", plan.Snapshotter,
		"{CDI}", quote(p.CDI()),
		"{CACHE}", quote(plan.ImageCache.Folder),
		"{JOB}", quote(plan.ImageCache.Job),
		"{CACHELIMIT}", strconv.FormatInt(plan.ImageCache.Bytes, 10),
		"{KEEPNAMED}", strconv.FormatBool(plan.ImageCache.KeepNamed),
		"{LAZY}", strconv.FormatBool(plan.LazyPull && !plan.Registries.NoPull),
		"{SQUASH}", strconv.FormatBool(plan.OneUID),
		"{CNIPLUGINS}", quote(p.CNIPlugins()),
		"{CNICONFIG}", quote(p.CNIConfig()),
	).Replace(containerdTemplate))
}

// fastPathEnv returns environment variables of shims for berth-runc: the path of the socket
// that receives the seccomp filters of containers, and whether there is only one node.
func fastPathEnv(plan cluster.Plan) string {
	if !plan.FastPath {
		return ""
	}
	env := ", " + quote("BERTH_FAST_PATH="+plan.Paths.FastPath())
	if !plan.Several() {
		env += ", " + quote("BERTH_FAST_PATH_ALONE=yes")
	}
	return env
}

// mirrorHosts returns the directory for hosts files that put the mirror before some
// registries. It is empty if the mirror stands before all of them.
func mirrorHosts(plan cluster.Plan) string {
	if plan.Registries.NoPull {
		return ""
	}
	return plan.Paths.RegistryHosts()
}

// allowance returns by how many bytes a container may exceed its memory limit before the
// shim notices. It must fit into the memory that is reserved for berth. The smaller it is,
// the more often the shim checks an idle container.
func allowance(reserved uint64) uint64 {
	return min(max(reserved/4, 64<<20), 256<<20)
}

// quoteAll makes the elements of a TOML array of strings.
func quoteAll(all []string) string {
	quoted := make([]string, len(all))
	for i, s := range all {
		quoted[i] = quote(s)
	}
	return strings.Join(quoted, ", ")
}

// quote makes a TOML basic string, whose escapes are JSON's.
func quote(s string) string {
	text, _ := json.Marshal(s) // a string always encodes
	return string(text)
}
