package launch

import (
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/base/metrics"
	"berth.dev/berth/internal/launch/layers"
	"berth.dev/berth/internal/node/sandbox"
)

// metricsLimit bounds the time for a client to read a node's page.
const metricsLimit = 2 * time.Second

// serveMetrics sends the node's page to every client of a socket in the run's
// directory. This process does not speak HTTP. Only the user and the node role
// reach the socket, and the node role serves the page over HTTP.
func (r *run) serveMetrics() error {
	listener, err := linux.ListenIn(r.scratch.Path, metrics.Socket)
	if err != nil {
		return exitcode.Wrap(exitcode.NoSpace, err)
	}
	r.metrics = listener
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			r.tell(conn)
		}
	}()
	return nil
}

func (r *run) tell(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(metricsLimit)) // a socket supports deadlines
	page := metrics.NewPage(r.plan.Node.Name)
	r.describe(page)
	_, _ = page.WriteTo(conn) // errors are the client's
}

// describe measures the node. It runs only on request, so an unobserved run has
// no cost.
func (r *run) describe(page *metrics.Page) {
	page.Add(metrics.Info, 1, "version", cluster.Version(), "kubernetes", r.plan.KubernetesVersion, "run", r.plan.RunID, "snapshotter", r.plan.Snapshotter)
	for phase, after := range r.began.all() {
		page.Add("berth_start_seconds", after.Seconds(), "phase", phase)
	}
	if left, known := r.allocation.Left(); known {
		page.Add("berth_job_left_seconds", left.Round(time.Second).Seconds())
	}
	page.Add("berth_node_cpus", float64(r.plan.Node.CPUs))
	page.Add("berth_node_memory_bytes", float64(r.plan.Node.MemoryBytes))
	page.Add("berth_node_reserved_memory_bytes", float64(r.plan.Node.ReservedMemoryBytes))
	if file := r.host.memory.UsageFile; file != "" {
		if content, err := os.ReadFile(file); err == nil {
			if bytes, err := strconv.ParseUint(strings.TrimSpace(string(content)), 10, 64); err == nil {
				page.Add("berth_node_memory_used_bytes", float64(bytes))
			}
		}
	}
	for name, pids := range r.roleProcesses() {
		var sum linux.Usage
		for _, pid := range pids {
			if used, err := linux.UsageOf(pid); err == nil { // else it has just ended
				sum.CPU += used.CPU
				if name == "containerd" { // its runc; children of other roles are roles themselves
					sum.CPU += used.ChildCPU
				}
				sum.Memory += used.Memory
			}
		}
		page.Add("berth_role_memory_bytes", float64(sum.Memory), "role", name)
		page.Add("berth_role_cpu_seconds_total", sum.CPU.Seconds(), "role", name)
	}
	received, expected := metrics.ReceivedImages(r.plan.Paths.ContainerdRoot())
	page.Add("berth_image_received_bytes", float64(received))
	page.Add("berth_image_expected_bytes", float64(expected))
	r.supervisor.Describe(page)
}

// roleProcesses returns the processes of the cluster's parts by role. It starts
// from this process's children and omits pods.
func (r *run) roleProcesses() map[string][]int {
	supervisor := os.Getpid()
	found := map[string][]int{"supervisor": {supervisor}}
	parents, err := linux.Parents()
	if err != nil {
		return found
	}
	below := map[int]bool{supervisor: true}
	for range 3 { // the janitor, init, and its children
		next := map[int]bool{}
		for pid, parent := range parents {
			if !below[parent] {
				continue
			}
			name, further := roleOf(linux.Arguments(pid))
			if name != "" {
				found[name] = append(found[name], pid)
			}
			if further {
				next[pid] = true
			}
		}
		below = next
	}
	return found
}

// roleOf returns the role of a process with this command line, or an empty
// string. further reports whether its children may be roles, as for the sandbox's
// own processes.
func roleOf(arguments []string) (name string, further bool) {
	if len(arguments) == 0 {
		return "", false
	}
	first := ""
	if len(arguments) > 1 {
		first = arguments[1]
	}
	switch filepath.Base(arguments[0]) {
	case "berth":
		switch {
		case first == sandbox.JanitorArg, first == sandbox.InitArg:
			return "sandbox", true
		case strings.HasSuffix(first, "-role"):
			return strings.TrimSuffix(first, "-role"), false
		}
	case "berth-kube":
		return first, false
	case "containerd":
		return "containerd", false
	case "containerd-shim-berth-v2":
		return "shims", false
	case "coredns":
		return "dns", false
	case "berth-layers":
		return layers.Name, false
	}
	return "", false
}

// phases records when each step of the start was done, relative to the start of
// the run.
type phases struct {
	start time.Time
	mu    *sync.Mutex
	done  map[string]time.Duration
}

func newPhases() phases {
	return phases{start: time.Now(), mu: &sync.Mutex{}, done: map[string]time.Duration{}}
}

// note wraps report and records the first time of each step.
func (p phases) note(report func(string)) func(string) {
	return func(step string) {
		p.mu.Lock()
		if _, again := p.done[step]; !again {
			p.done[step] = time.Since(p.start)
		}
		p.mu.Unlock()
		report(step)
	}
}

func (p phases) all() map[string]time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.done)
}
