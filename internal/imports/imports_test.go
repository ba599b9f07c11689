// Package imports holds the rules by which berth's packages may import each
// other, and the test of them. It has no code.
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

// layers are the allowed edges between berth's packages: a package may import
// those on the right of its pattern. What is not listed may import nothing.
var layers = map[string][]string{
	"cmd/berth":      {"internal/cli", "internal/jobdoor", "internal/launch", "internal/login", "internal/probe", "internal/sandbox"},
	"cmd/berth-runc": {"internal/fastpath"},
	"cmd/berthd":     {"internal/sited"},
	"cmd/berth-kube": {"internal/kube/control", "internal/kube/node"},
	"internal/cli":   {"internal/batch", "internal/cluster", "internal/launch", "internal/login", "internal/metrics", "internal/probe", "internal/programs", "internal/settings", "internal/slurm", "internal/top"},
	"internal/launch": {
		"internal/balancer", "internal/batch", "internal/cluster", "internal/containerlog", "internal/devices", "internal/directory", "internal/dnsconf", "internal/egress", "internal/fastpath", "internal/kube/notify", "internal/lease", "internal/linux", "internal/metrics", "internal/nodes", "internal/overlay",
		"internal/pki", "internal/policy", "internal/probe", "internal/programs", "internal/rendezvous", "internal/rundir", "internal/runtimeconf", "internal/sandbox", "internal/site", "internal/slurm", "internal/standing", "internal/state", "internal/workload",
	},
	"internal/kube/control": {"internal/cluster", "internal/kube/heap", "internal/kube/notify", "internal/kube/objects", "internal/kube/usage", "internal/pki", "internal/state"},
	"internal/kube/objects": {"internal/state"},
	"internal/kube/heap":    {"internal/linux"},
	// The role node serves the fast path what takes capabilities over pods.
	"internal/kube/node":    {"internal/cluster", "internal/directory", "internal/fastpath", "internal/kube/heap", "internal/kube/mounter", "internal/kube/notify", "internal/kube/procstats", "internal/linux", "internal/metrics", "internal/policy"},
	"internal/sited":        {"internal/cni", "internal/site", "internal/slurm", "internal/vxlan"},
	"internal/site":         {"internal/slurm"},
	"internal/vxlan":        {"internal/linux", "internal/site"},
	"internal/batch":        {"internal/slurm"},
	"internal/egress":       {"internal/linux"},
	"internal/overlay":      {"internal/linux"},
	"internal/fastpath":     {"internal/linux"},
	"internal/policy":       {},
	"internal/top":          {"internal/metrics", "internal/slurm", "internal/top/background"},
	"internal/rendezvous":   {},
	"internal/login":        {"internal/cluster", "internal/jobdoor", "internal/linux", "internal/loopback", "internal/pki", "internal/programs", "internal/rundir", "internal/slurm", "internal/standing", "internal/tunnel"},
	"internal/jobdoor":      {"internal/cluster", "internal/pki", "internal/rundir", "internal/slurm", "internal/tunnel"},
	"internal/balancer":     {},
	"internal/containerlog": {},
	"internal/lease":        {},
	"internal/sandbox":      {"internal/linux"},
	"internal/standing":     {"internal/rundir"},
	"internal/slurm":        {"internal/probe"},
	"internal/probe":        {"internal/linux"},
	"internal/loopback":     {"internal/linux"},
	"internal/devices":      {"internal/cluster"},
	"internal/dnsconf":      {"internal/cluster"},
	"internal/runtimeconf":  {"internal/cluster"},
	"internal/directory":    {"internal/linux", "internal/policy"},
	"internal/workload":     {"internal/cluster", "internal/containerlog"},
	"internal/testutil":     {"internal/linux"},
}

// bans are imports from outside that some packages must not make, even through
// others.
var bans = []struct {
	prefix string
	except []string
	reason string
}{
	{
		prefix: "k8s.io/kubernetes",
		except: []string{"cmd/berth-kube", "internal/kube/control", "internal/kube/objects", "internal/kube/node", "internal/kube/procstats", "internal/kube/mounter", "internal/kube/usage"},
		reason: "it adds 100 MB and 45 ms of start-up; bin/berth must start in milliseconds",
	},
	{
		prefix: "k8s.io/client-go",
		except: []string{"cmd/berth", "cmd/berth-kube", "internal/cli", "internal/directory", "internal/launch", "internal/lease", "internal/nodes", "internal/policy", "internal/workload", "internal/kube/control", "internal/kube/objects", "internal/kube/node", "internal/kube/procstats", "internal/kube/mounter", "internal/kube/usage", "test/yardstick"},
		reason: "mechanisms below the workload know no Kubernetes API",
	},
	{
		prefix: "gvisor.dev/gvisor",
		except: []string{"cmd/berth", "internal/cli", "internal/launch", "internal/egress"},
		reason: "the user-mode network stack belongs to egress alone",
	},
}

type goPackage struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func TestImportsFlowOneWay(t *testing.T) {
	for _, p := range list(t) {
		own := strings.TrimPrefix(p.ImportPath, module)
		for _, imported := range p.Imports {
			target, ours := strings.CutPrefix(imported, module)
			if ours && !slices.Contains(layers[own], target) {
				t.Errorf("%s imports %s: add the edge to layers if the direction is right", own, target)
			}
		}
		for _, ban := range bans {
			if slices.Contains(ban.except, own) {
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

func TestNoRuleIsAboutAPackageThatIsGone(t *testing.T) {
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
	out, err := command.Output()
	if err != nil {
		t.Fatalf("list packages: %v", err)
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
