package procstats

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Annotations that containerd's CRI plugin puts into the OCI configuration.
const (
	criType      = "io.kubernetes.cri.container-type"
	criContainer = "io.kubernetes.cri.container-name"
	criPod       = "io.kubernetes.cri.sandbox-name"
	criNamespace = "io.kubernetes.cri.sandbox-namespace"
	criUID       = "io.kubernetes.cri.sandbox-uid"
	criSandboxID = "io.kubernetes.cri.sandbox-id"
)

// sandboxName is the name under which the kubelet expects a pod's sandbox.
const sandboxName = "POD"

// container is a running container, as its bundle describes it.
type container struct {
	id, sandboxID        string
	name, pod, namespace string
	uid                  string
	pid                  int // of its first process
	created              time.Time
}

func (c *container) sandbox() bool { return c.name == sandboxName }

// bundles lists the containers from the bundles that containerd's shims keep:
// asking containerd itself would be a request per container and pass.
type bundles struct {
	dir   string
	known map[string]*container
}

func newBundles(dir string) *bundles {
	return &bundles{dir: dir, known: map[string]*container{}}
}

// list returns the containers whose first process was started. A bundle is
// read once; one that is not complete yet is left for the next call.
func (b *bundles) list() ([]*container, error) {
	entries, err := os.ReadDir(b.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var all []*container
	now := make(map[string]*container, len(entries))
	for _, e := range entries {
		c := b.known[e.Name()]
		if c == nil {
			if c, err = readBundle(filepath.Join(b.dir, e.Name())); err != nil {
				continue
			}
		}
		now[e.Name()] = c
		all = append(all, c)
	}
	b.known = now
	return all, nil
}

func readBundle(dir string) (*container, error) {
	pidFile := filepath.Join(dir, "init.pid")
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", pidFile, err)
	}
	info, err := os.Stat(pidFile)
	if err != nil {
		return nil, err
	}
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.Unmarshal(config, &spec); err != nil {
		return nil, fmt.Errorf("parse the configuration of %s: %w", dir, err)
	}
	a := spec.Annotations
	c := &container{
		id: filepath.Base(dir), sandboxID: a[criSandboxID], name: a[criContainer],
		pod: a[criPod], namespace: a[criNamespace], uid: a[criUID],
		pid: pid, created: info.ModTime(),
	}
	if a[criType] == "sandbox" {
		c.name, c.sandboxID = sandboxName, c.id
	}
	return c, nil
}

// owners finds the container of each process.
type owners struct {
	processes map[int]process
	byNS      map[string]*container // PID namespaces that only one container uses
	byInit    map[int]*container
	byShim    map[int]*container // a shim's orphans belong to its pod's sandbox
	memo      map[int]*container
}

// assign returns the container that each process belongs to, nil for one of
// the node. The PID namespace decides where only one container uses it, which
// finds processes of `kubectl exec` too. Where containers share one, with each
// other or with the node, the nearest ancestor that is known decides.
func assign(processes map[int]process, containers []*container, ownNS string) map[int]*container {
	o := owners{
		processes: processes, byNS: map[string]*container{}, byInit: map[int]*container{},
		byShim: map[int]*container{}, memo: make(map[int]*container, len(processes)),
	}
	sandboxes := map[string]*container{}
	for _, c := range containers {
		if c.sandbox() {
			sandboxes[c.id] = c
		}
	}
	users := map[string]int{}
	for _, c := range containers {
		if p, ok := processes[c.pid]; ok {
			o.byInit[c.pid] = c
			users[p.pidNS]++
			o.byNS[p.pidNS] = c
			if s := sandboxes[c.sandboxID]; s != nil && processes[p.Parent].pidNS == ownNS {
				o.byShim[p.Parent] = s
			}
		}
	}
	for ns, n := range users {
		if n > 1 || ns == ownNS || ns == "" {
			delete(o.byNS, ns)
		}
	}
	delete(o.byShim, 1) // a container whose shim died is a child of PID 1
	for pid := range processes {
		o.owner(pid, 0)
	}
	return o.memo
}

func (o *owners) owner(pid, depth int) *container {
	if c, ok := o.memo[pid]; ok {
		return c
	}
	p, ok := o.processes[pid]
	if !ok || depth > 256 { // a pass is not a snapshot: parents may form a loop
		return nil
	}
	c := o.byNS[p.pidNS]
	if c == nil {
		c = o.byInit[pid]
	}
	if c == nil && o.byShim[pid] == nil { // a shim itself is no part of the pod
		if c = o.byShim[p.Parent]; c == nil {
			c = o.owner(p.Parent, depth+1)
		}
	}
	o.memo[pid] = c
	return c
}
