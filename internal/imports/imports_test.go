// Package imports holds the rules for imports between berth's packages, and the
// test of them. It has no code.
package imports

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "berth.dev/berth/"

// groups are the directories of internal, lowest first, and the groups that
// each may import besides itself.
var groups = map[string][]string{
	"base":      {},
	"job":       {"base"},
	"node":      {"base"},
	"network":   {"base"},
	"kube":      {"base", "network"},
	"site":      {"base", "job"},
	"access":    {"base", "job"},
	"slurmjobs": {"base", "job"},
	"elastic":   {"base", "job"},
	"launch":    {"base", "job", "node", "network", "kube", "site", "access", "slurmjobs", "elastic"},
	"cli":       {"base", "job", "access", "launch", "slurmjobs"},
	"testutil":  {"base"},
}

// layers are the allowed edges between packages, finer than groups: a package
// may import those on the right. What is not listed may import nothing.
var layers = map[string][]string{
	"cmd/berth": {
		"internal/access/jobend", "internal/access/login",
		"internal/base/probe",
		"internal/cli",
		"internal/launch", "internal/launch/command", "internal/launch/netrole", "internal/launch/proof",
	},
	"cmd/berth-kube":    {"internal/access/kubectl", "internal/base/heap", "internal/base/heap/startup", "internal/kube/control", "internal/kube/node"},
	"cmd/berth-runc":    {"internal/network/fastpath"},
	"cmd/berth-sandbox": {"internal/launch/crash", "internal/launch/logrole", "internal/node/sandbox"},
	"cmd/berthd":        {"internal/site/berthd"},

	"internal/base/heap":  {"internal/base/linux"},
	"internal/base/probe": {"internal/base/linux"},

	"internal/job/batch":  {"internal/base/exitcode", "internal/job/slurm"},
	"internal/job/permit": {"internal/job/batch"},
	"internal/job/queue":  {"internal/job/batch", "internal/job/slurm"},
	// The result of a check, which berth doctor prints.
	"internal/job/slurm": {"internal/base/probe"},

	"internal/node/containerdconf": {"internal/base/cluster"},
	"internal/node/devices":        {"internal/base/cluster"},
	"internal/node/dnsconf":        {"internal/base/cluster"},
	"internal/node/sandbox":        {"internal/base/linux"},

	"internal/network/egress":     {"internal/base/linux", "internal/network/share"},
	"internal/network/fastpath":   {"internal/base/linux", "internal/network/fastpath/filter", "internal/network/fastpath/sock", "internal/network/share"},
	"internal/network/overlay":    {"internal/base/linux"},
	"internal/network/servicemap": {"internal/base/linux", "internal/network/policy"},

	"internal/kube/control": {
		"internal/base/cluster", "internal/base/heap", "internal/base/notify", "internal/base/pki",
		"internal/kube/objects", "internal/kube/savedstate", "internal/kube/usage",
	},
	// It answers the fast path questions that need capabilities over pods.
	"internal/kube/node": {
		"internal/base/cluster", "internal/base/heap", "internal/base/linux", "internal/base/metrics", "internal/base/notify",
		"internal/kube/mounter", "internal/kube/procstats",
		"internal/network/fastpath", "internal/network/policy", "internal/network/servicemap",
	},
	// The objects of a run on an existing cluster, and the connection that applies them.
	"internal/kube/existing":  {"internal/kube/workload"},
	"internal/kube/objects":   {"internal/kube/savedstate"},
	"internal/kube/procstats": {"internal/base/linux"},
	"internal/kube/lease":     {"internal/kube/outage"},
	"internal/kube/nodeloss":  {"internal/kube/outage"},
	"internal/kube/workload":  {"internal/base/cluster", "internal/kube/containerlog", "internal/kube/outage"},

	"internal/kube/control/controltest": {"internal/base/cluster", "internal/base/notify", "internal/base/pki"},

	"internal/elastic/pilots": {"internal/base/cluster", "internal/elastic/plan", "internal/elastic/wishes", "internal/job/batch", "internal/job/queue", "internal/job/slurm"},
	"internal/elastic/plan":   {"internal/base/cluster"},
	"internal/elastic/wishes": {"internal/job/batch", "internal/job/permit"},

	"internal/slurmjobs/process": {
		"internal/base/heap", "internal/base/pki", "internal/job/queue", "internal/job/slurm", "internal/slurmjobs/container", "internal/slurmjobs/controller", "internal/slurmjobs/joblog", "internal/slurmjobs/kinds",
		"internal/slurmjobs/objectstore", "internal/slurmjobs/partitions", "internal/slurmjobs/results", "internal/slurmjobs/script", "internal/slurmjobs/trust",
	},
	// The batch script that runs an image, whose binds have the same limits as paths of scripts.
	"internal/slurmjobs/container":  {"internal/job/batch", "internal/slurmjobs/kinds", "internal/slurmjobs/script"},
	"internal/slurmjobs/partitions": {"internal/base/cluster", "internal/job/slurm", "internal/slurmjobs/kinds"},
	// Outputs of jobs must be in the folders that scripts may name.
	"internal/slurmjobs/joblog":     {"internal/slurmjobs/script"},
	"internal/slurmjobs/controller": {"internal/job/queue", "internal/slurmjobs/kinds", "internal/slurmjobs/results", "internal/slurmjobs/trust"},
	"internal/slurmjobs/script":     {"internal/job/batch", "internal/job/permit", "internal/job/queue", "internal/job/slurm"},
	// The annotation of the Nodes of partitions is in a policy.
	"internal/slurmjobs/trust": {"internal/base/cluster", "internal/slurmjobs/kinds", "internal/slurmjobs/partitions"},

	"internal/site/berthd": {
		"internal/base/exitcode", "internal/base/linux", "internal/job/slurm",
		"internal/site/berthd/etcd", "internal/site/berthd/gateway", "internal/site/berthd/keys", "internal/site/berthd/limits", "internal/site/berthd/nameserver", "internal/site/berthd/pidns", "internal/site/berthd/store",
		"internal/site/nametable", "internal/site/podcni", "internal/site/siteconf", "internal/site/vxlan",
	},
	"internal/site/berthd/etcd":       {"internal/site/berthd/keys", "internal/site/siteconf"},
	"internal/site/berthd/gateway":    {"internal/site/berthd/store", "internal/site/siteconf", "internal/site/vxlan"},
	"internal/site/berthd/keys":       {"internal/site/berthd/store", "internal/site/siteconf"},
	"internal/site/berthd/nameserver": {"internal/site/nametable", "internal/site/siteconf"},
	"internal/site/berthd/pidns":      {"internal/site/vxlan"},
	"internal/site/berthd/store":      {"internal/site/siteconf"},
	"internal/site/siteconf":          {"internal/base/linux", "internal/job/slurm"},
	"internal/site/vxlan":             {"internal/base/linux", "internal/site/siteconf"},

	"internal/access/interlink": {"internal/base/cluster"},
	"internal/access/jobend":    {"internal/access/tunnel", "internal/base/cluster", "internal/base/pki", "internal/base/rundir", "internal/job/slurm"},
	"internal/access/login": {
		"internal/access/jobend", "internal/access/loopback", "internal/access/persistent", "internal/access/tunnel",
		"internal/base/cluster", "internal/base/linux", "internal/base/pki", "internal/base/programs", "internal/base/rundir",
		"internal/job/slurm",
	},
	"internal/access/kubectl":    {"internal/access/kubectl/translations", "internal/access/loopback"},
	"internal/access/loopback":   {"internal/base/linux"},
	"internal/access/persistent": {"internal/base/rundir"},
	"internal/access/top":        {"internal/access/top/background", "internal/base/cluster", "internal/base/metrics", "internal/job/slurm"},

	"internal/launch": {
		"internal/access/persistent",
		"internal/base/cluster", "internal/base/exitcode", "internal/base/linux", "internal/base/metrics", "internal/base/notify", "internal/base/pki", "internal/base/probe", "internal/base/programs", "internal/base/rundir",
		"internal/job/batch", "internal/job/rendezvous", "internal/job/slurm",
		"internal/launch/allocation", "internal/launch/archive", "internal/launch/command", "internal/launch/crash", "internal/launch/hostnet", "internal/launch/identity", "internal/launch/imagecache", "internal/launch/layers", "internal/launch/logrole", "internal/launch/members", "internal/launch/netrole", "internal/launch/proof", "internal/launch/pulls", "internal/launch/supervisor",
		"internal/kube/containerlog", "internal/kube/existing", "internal/kube/lease", "internal/kube/nodeloss", "internal/kube/savedstate", "internal/kube/workload",
		"internal/network/balancer", "internal/network/egress", "internal/network/overlay",
		"internal/node/containerdconf", "internal/node/devices", "internal/node/dnsconf", "internal/node/sandbox",
		"internal/site/siteconf",
		// Slurm jobs of objects are served on the host of the head, and pilots submitted.
		"internal/base/heap", "internal/elastic/pilots", "internal/job/queue", "internal/slurmjobs/process",
	},

	"internal/launch/allocation": {"internal/base/exitcode", "internal/base/linux", "internal/base/probe", "internal/job/slurm"},
	"internal/launch/archive":    {"internal/base/cluster", "internal/base/exitcode", "internal/job/rendezvous", "internal/launch/hostnet", "internal/launch/identity"},
	// How often a stopped child is continued.
	"internal/launch/command": {"internal/base/exitcode", "internal/base/linux", "internal/base/programs", "internal/launch/supervisor"},
	"internal/launch/crash":   {"internal/base/linux", "internal/node/sandbox"},
	// The net role serves its sockets with the packages of network.
	"internal/launch/hostnet":  {"internal/base/cluster", "internal/job/rendezvous", "internal/job/slurm", "internal/network/fastpath", "internal/network/overlay"},
	"internal/launch/identity": {"internal/base/cluster", "internal/base/linux", "internal/base/pki", "internal/node/sandbox"},
	// A pull fails with the same remedies as a pod's image.
	"internal/launch/imagecache": {"internal/base/cluster", "internal/base/exitcode", "internal/base/programs", "internal/base/rundir", "internal/kube/workload", "internal/launch/pulls"},
	"internal/launch/layers":     {"internal/base/linux", "internal/launch/supervisor"},
	"internal/launch/logrole":    {"internal/base/notify", "internal/kube/containerlog", "internal/node/sandbox"},
	"internal/launch/members": {
		"internal/base/cluster", "internal/base/exitcode", "internal/base/linux",
		"internal/job/rendezvous", "internal/job/slurm",
		"internal/launch/archive", "internal/launch/hostnet", "internal/launch/identity", "internal/launch/proof",
		"internal/network/overlay",
		"internal/node/sandbox",
	},
	// The parent half takes the files of the sandbox and of hostnet, the child half
	// serves them with the packages of network.
	"internal/launch/netrole": {
		"internal/base/cluster", "internal/base/exitcode", "internal/base/linux", "internal/base/metrics", "internal/base/notify",
		"internal/launch/hostnet", "internal/launch/supervisor",
		"internal/network/egress", "internal/network/fastpath", "internal/network/overlay", "internal/network/servicemap",
		"internal/node/sandbox",
	},
	"internal/launch/proof":      {"internal/base/cluster", "internal/base/exitcode", "internal/job/rendezvous", "internal/job/slurm"},
	"internal/launch/pulls":      {"internal/base/cluster", "internal/node/sandbox"},
	"internal/launch/supervisor": {"internal/base/exitcode", "internal/base/linux", "internal/base/metrics", "internal/base/notify", "internal/node/sandbox"},

	"internal/cli": {
		"internal/access/interlink", "internal/access/login", "internal/access/top",
		"internal/base/cluster", "internal/base/exitcode", "internal/base/metrics", "internal/base/probe", "internal/base/programs", "internal/base/settings",
		"internal/job/batch", "internal/job/slurm",
		// The causes of an end are errors of allocation.
		"internal/launch", "internal/launch/allocation", "internal/launch/crash", "internal/launch/imagecache",
		"internal/slurmjobs/process", "internal/slurmjobs/trust",
	},

	"internal/testutil": {"internal/base/linux"},

	"test/interlink": {"test/interlink/virtualnode"},
	// Simulated nodes join by the protocol of real ones.
	"test/scale/seats": {
		"internal/base/cluster", "internal/job/rendezvous", "internal/job/slurm", "internal/launch/hostnet", "internal/launch/members",
		"internal/launch/proof",
	},
}

// bans are imports from outside that some packages must not make, even through
// others. If only is empty, a ban is for all packages that except does not list.
var bans = []struct {
	prefix       string
	only, except []string
	reason       string
}{
	{
		prefix: "k8s.io",
		only:   []string{"cmd/berth-sandbox"},
		reason: "each of the program's processes would have the variables of these packages in memory",
	},
	{
		prefix: "k8s.io/kubernetes",
		except: []string{"cmd/berth-kube", "internal/kube/control", "internal/kube/objects", "internal/kube/node", "internal/kube/procstats", "internal/kube/mounter", "internal/kube/usage"},
		reason: "it adds 100 MB and 45 ms of start-up; bin/berth must start in milliseconds",
	},
	{
		prefix: "k8s.io/client-go",
		except: []string{"cmd/berth", "cmd/berth-kube", "internal/access/interlink", "internal/access/kubectl", "internal/cli", "internal/network/servicemap", "internal/launch", "internal/launch/imagecache", "internal/launch/netrole", "internal/kube/existing", "internal/kube/lease", "internal/kube/nodeloss", "internal/kube/outage", "internal/network/policy", "internal/kube/workload", "internal/kube/control", "internal/kube/control/controltest", "internal/kube/objects", "internal/kube/node", "internal/kube/procstats", "internal/kube/mounter", "internal/kube/usage", "internal/slurmjobs/controller", "internal/slurmjobs/partitions", "internal/slurmjobs/process", "internal/slurmjobs/results", "internal/slurmjobs/trust", "internal/elastic/pilots", "test/linearizable", "test/scale/seats", "test/yardstick"},
		reason: "mechanisms below the workload know no Kubernetes API",
	},
	{
		prefix: "gvisor.dev/gvisor",
		except: []string{"cmd/berth", "internal/cli", "internal/launch", "internal/launch/netrole", "internal/network/egress"},
		reason: "the user-mode network stack belongs to egress alone",
	},
}

type goPackage struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func TestImportsPointDownwards(t *testing.T) {
	for _, p := range list(t) {
		own := strings.TrimPrefix(p.ImportPath, module)
		for _, imported := range p.Imports {
			target, ours := strings.CutPrefix(imported, module)
			if ours && !slices.Contains(layers[own], target) {
				t.Errorf("%s imports %s: add the edge to layers if the direction is right", own, target)
			}
		}
		for _, ban := range bans {
			if slices.Contains(ban.except, own) || ban.only != nil && !slices.Contains(ban.only, own) {
				continue
			}
			for _, dependency := range p.Deps {
				if dependency == ban.prefix || strings.HasPrefix(dependency, ban.prefix+"/") {
					t.Errorf("%s depends on %s: %s", own, dependency, ban.reason)
					break
				}
			}
		}
	}
}

func TestGroupsImportOnlyGroupsBelow(t *testing.T) {
	for from, targets := range layers {
		group, ok := groupOf(from)
		if !ok {
			continue
		}
		for _, target := range targets {
			other, _ := groupOf(target)
			if other != group && !slices.Contains(groups[group], other) {
				t.Errorf("%s may import %s, but the group %s may not import %s", from, target, group, other)
			}
		}
	}
}

// groupOf returns the directory of internal that holds a package.
func groupOf(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, "internal/")
	group, _, _ := strings.Cut(rest, "/")
	return group, ok
}

func TestEveryRuleNamesExistingPackage(t *testing.T) {
	packages := map[string]bool{}
	for _, p := range list(t) {
		packages[strings.TrimPrefix(p.ImportPath, module)] = true
	}
	for from, targets := range layers {
		for _, name := range append(targets, from) {
			if !packages[name] {
				t.Errorf("the rule for %s names %s, which does not exist", from, name)
			}
		}
	}
}

func list(t *testing.T) []goPackage {
	t.Helper()
	lookAtSources(t)
	command := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,Deps", path.Join(module, "..."))
	var stderr strings.Builder
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("list packages: %v: %s", err, &stderr)
	}
	var packages []goPackage
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p goPackage
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		if err != nil {
			t.Fatalf("read the list of packages: %v", err)
		}
		packages = append(packages, p)
	}
}

// lookAtSources looks at the files that 'go list' is to read, so that a result
// that the go command has kept is of no use once one of them has changed.
func lookAtSources(t *testing.T) {
	t.Helper()
	for _, root := range []string{"../../test/yardstick", "../../cmd", ".."} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") {
				_, err = os.Stat(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
