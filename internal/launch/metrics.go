package launch

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/base/metrics"
	"berth.dev/berth/internal/launch/layers"
	"berth.dev/berth/internal/launch/logrole"
	"berth.dev/berth/internal/node/sandbox"
)

// metricsLimit bounds the time for a client to read a node's page.
const metricsLimit = 2 * time.Second

// servePage sends the node's page to every client of a socket in the run's
// directory. This process does not speak HTTP. Only the user and the node role
// reach the socket, and the node role serves the page over HTTP. measure runs only
// on request, so an unobserved run has no cost.
func servePage(dir string, measure func() *metrics.Page) (*net.UnixListener, error) {
	listener, err := linux.ListenIn(dir, metrics.Socket)
	if err != nil {
		return nil, exitcode.Wrap(exitcode.NoSpace, err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			_ = conn.SetDeadline(time.Now().Add(metricsLimit)) // a socket supports deadlines
			_, _ = measure().WriteTo(conn)                     // errors are the client's
			conn.Close()
		}
	}()
	return listener, nil
}

// page measures the node.
func (n *node) page() *metrics.Page {
	page := metrics.NewPage(n.plan.Node.Name)
	page.Add(metrics.Info, 1, "version", cluster.Version(), "kubernetes", n.plan.KubernetesVersion, "run", n.plan.RunID, "snapshotter", n.plan.Snapshotter)
	for phase, after := range n.began.all() {
		page.Add("berth_start_seconds", after.Seconds(), "phase", phase)
	}
	if left, known := n.allocation.Left(); known {
		page.Add("berth_job_left_seconds", left.Round(time.Second).Seconds())
	}
	page.Add("berth_node_cpus", float64(n.plan.Node.CPUs))
	page.Add("berth_node_memory_bytes", float64(n.plan.Node.MemoryBytes))
	page.Add("berth_node_reserved_memory_bytes", float64(n.plan.Node.ReservedMemoryBytes))
	if file := n.host.memory.UsageFile; file != "" {
		if content, err := os.ReadFile(file); err == nil {
			if bytes, err := strconv.ParseUint(strings.TrimSpace(string(content)), 10, 64); err == nil {
				page.Add("berth_node_memory_used_bytes", float64(bytes))
			}
		}
	}
	for name, pids := range roleProcesses() {
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
	received, expected := metrics.ReceivedImages(n.plan.Paths.ContainerdRoot())
	page.Add("berth_image_received_bytes", float64(received))
	page.Add("berth_image_expected_bytes", float64(expected))
	n.supervisor.Describe(page)
	return page
}

// roleProcesses returns the processes of the cluster's parts by role. It starts
// from this process's children and omits pods.
func roleProcesses() map[string][]int {
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
	case sandboxProgram:
		if first == logrole.Arg {
			return logsRole, false
		}
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
