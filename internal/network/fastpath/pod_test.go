package fastpath

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/filter"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// labPod is a pod of the lab.
type labPod struct {
	host    *host
	name    string
	address netip.Addr
	ipv6    netip.Addr
	// plain pods have no filter.
	plain   bool
	allowed allowed
	memory  bool // sysinfo(2) is answered
	// foreign pods register their filter with the cookie of another network namespace.
	foreign bool
}

func (h *host) addPod(number int) *labPod {
	h.lab.Helper()
	p := &labPod{host: h, name: fmt.Sprintf("p%d", number), address: netip.AddrFrom4([4]byte{10, 42, byte(h.index), byte(number)})}
	p.ipv6 = netip.MustParseAddr(fmt.Sprintf("fd42:0:0:%d::%d", h.index, number))
	args := PodArgs{Name: p.name, Address: p.address, IPv6: p.ipv6}
	if err := h.call("Agent.AddPod", args, nil); err != nil {
		h.lab.Fatalf("add pod %s: %v", p.address, err)
	}
	return p
}

// app is a program that runs in a pod.
type app struct {
	pod *labPod
	pid int
	all []string
}

func (p *labPod) start(name string, args ...string) *app {
	t := p.host.lab
	t.Helper()
	begin := StartArgs{Pod: p.name, Program: append([]string{name}, args...), Env: []string{asRole + "=" + roleProgram}}
	if !p.plain {
		encoded, _ := json.Marshal(p.allowed)
		begin.Env = []string{asRole + "=" + roleLaunch, fmt.Sprintf("OLD=%v", t.config.old), "CONTAINERS=" + p.host.containersPath(), "POD=" + p.address.String(), "POD6=" + p.ipv6.String(), "ALLOWED=" + string(encoded), fmt.Sprintf("MEMORY=%v", p.memory), fmt.Sprintf("FOREIGN=%v", p.foreign)}
	}
	if t.config.old {
		// The signals of the Go runtime would interrupt calls, as any signal does on these
		// kernels. A connect that is interrupted and restarted makes two connections, but
		// tests count them.
		begin.Env = append(begin.Env, "GODEBUG=asyncpreemptoff=1")
	}
	started := &app{pod: p, all: begin.Program}
	if err := p.host.call("Agent.Start", begin, &started.pid); err != nil {
		t.Fatalf("start %v: %v", begin.Program, err)
	}
	return started
}

// serve starts a program that prints when it is ready.
func (p *labPod) serve(name string, args ...string) *app {
	p.host.lab.Helper()
	s := p.start(name, args...)
	if line := s.line(); line != "ready" {
		p.host.lab.Fatalf("%v prints %q", s.all, line)
	}
	return s
}

func (p *labPod) run(name string, args ...string) string {
	p.host.lab.Helper()
	return p.start(name, args...).wait()
}

func (p *labPod) at(port int) string {
	return netip.AddrPortFrom(p.address, uint16(port)).String()
}

func (p *labPod) at6(port int) string {
	return netip.AddrPortFrom(p.ipv6, uint16(port)).String()
}

func (g *app) line() (line string) {
	g.pod.host.lab.Helper()
	if err := g.pod.host.call("Agent.Line", g.pid, &line); err != nil {
		g.pod.host.lab.Fatalf("%v: %v", g.all, err)
	}
	return line
}

func (g *app) wait() (output string) {
	g.pod.host.lab.Helper()
	output, err := g.result()
	if err != nil {
		g.pod.host.lab.Fatal(err)
	}
	return output
}

func (g *app) result() (output string, err error) {
	g.pod.host.lab.Helper()
	if err = g.pod.host.call("Agent.Wait", g.pid, &output); err != nil {
		err = fmt.Errorf("%v in pod %s: %w", g.all, g.pod.address, err)
	}
	return strings.TrimSpace(output), err
}

func (g *app) kill() {
	g.pod.host.lab.Helper()
	if err := g.pod.host.call("Agent.Kill", g.pid, nil); err != nil {
		g.pod.host.lab.Fatalf("kill %v: %v", g.all, err)
	}
}

// runLaunch does what runc does with linux.seccomp.listenerPath.
func runLaunch() error {
	runtime.LockOSThread()
	var extra allowed
	if err := json.Unmarshal([]byte(os.Getenv("ALLOWED")), &extra); err != nil {
		return err
	}
	address, err1 := netip.ParseAddr(os.Getenv("POD"))
	ipv6, err2 := netip.ParseAddr(os.Getenv("POD6"))
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	network, err := sock.NetworkCookie(socket)
	if err != nil {
		return err
	}
	if os.Getenv("FOREIGN") == "true" {
		network++
	}
	about := metadata{Address: address, AddressIPv6: ipv6, Network: network}
	memory := os.Getenv("MEMORY") == "true"
	if memory {
		about.Memory = labMemory
	}
	metadata, err := about.MarshalText()
	if err != nil {
		return err
	}
	if os.Getenv("OLD") == "true" {
		if err := refuseNewCalls(); err != nil {
			return err
		}
	}
	if err := confine(os.Getenv("CONTAINERS"), string(metadata), extra.filter(filter.Rules{Memory: memory})); err != nil {
		return err
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, asRole+"=") })
	return unix.Exec("/proc/self/exe", []string{"program"}, append(env, asRole+"="+roleProgram))
}
