package overlay

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/testutil"
)

// place is an end of a path between the members: the namespace of its programs,
// the address they listen on, and the address that the other side connects to.
type place struct {
	*namespace
	listen, dial netip.AddrPort
}

// The measured paths. Each has its own port, because all end in the same host.
const (
	bare    = "bare"
	over    = "overlay"
	slirp   = "slirp4netns"
	pasta   = "pasta"
	usual   = 5201
	ofSlirp = 5301
	ofPasta = 5401
)

func (m *member) place(path string) place {
	at := func(n *namespace, own, seen netip.Addr, port uint16) place {
		return place{n, netip.AddrPortFrom(own, port), netip.AddrPortFrom(seen, port)}
	}
	switch path {
	case bare:
		return at(m.host, m.hostAddr, m.hostAddr, usual)
	case over:
		return at(m.node, m.nodeAddr, m.nodeAddr, usual)
	}
	r := rivals[path]
	return at(m.rivals[path], r.address, m.hostAddr, r.port)
}

// rival is a program that connects a rootless network namespace with its host's.
// It forwards a port of the host to a port in the namespace.
type rival struct {
	address netip.Addr // in the namespace
	port    uint16
	// start carries packets of the network namespace of a process.
	start func(m *member, process, socket string) *exec.Cmd
}

var rivals = map[string]rival{
	slirp: {netip.MustParseAddr("10.0.2.100"), ofSlirp, func(_ *member, process, socket string) *exec.Cmd {
		return exec.Command(slirp, "--configure", "--mtu=65520", "--disable-host-loopback",
			"--netns-type=path", "--api-socket="+socket, "/proc/"+process+"/ns/net", "tap0")
	}},
	pasta: {netip.MustParseAddr("10.0.3.100"), ofPasta, func(m *member, process, _ string) *exec.Cmd {
		forward := fmt.Sprintf("%s/%d", m.hostAddr, ofPasta)
		return exec.Command(pasta, "--foreground", "--quiet", "--ipv4-only", "--runas", "0:0", "--config-net", "--no-map-gw",
			"--interface", "eth0", "--address", "10.0.3.100", "--netmask", "24", "--gateway", "10.0.3.1", "--ns-ifname", "tap0",
			"--tcp-ports", forward, "--udp-ports", forward, process)
	}},
}

// startRivals gives each member a namespace for every installed program, and
// returns the names of the programs.
func (l *lab) startRivals(b *testing.B) (names []string) {
	for _, name := range []string{slirp, pasta} {
		if _, err := exec.LookPath(name); err != nil {
			b.Logf("%s is not compared: %v; scripts/install-deps test installs it", name, err)
			continue
		}
		names = append(names, name)
		for i, m := range l.members {
			m.pin(b, i)
			m.startRival(b, name)
			m.pin(b, i)
		}
	}
	return names
}

func (m *member) startRival(b *testing.B, name string) {
	r := rivals[name]
	// Its own user namespace, which the program enters, too.
	holder := m.role(holding)
	namespaces := testutil.NewNamespaces()
	namespaces.UidMappings[0].HostID, namespaces.GidMappings[0].HostID = 0, 0
	holder.SysProcAttr = namespaces
	end, err := holder.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	m.host.try(b, holder.Start)
	b.Cleanup(func() {
		end.Close()
		holder.Wait()
	})
	process := fmt.Sprint(holder.Process.Pid)
	inside := enterNamespace(b, func() error {
		file, err := os.Open("/proc/" + process + "/ns/net")
		if err != nil {
			return err
		}
		defer file.Close()
		return unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
	})
	m.rivals[name] = inside
	inside.try(b, func() error { return addLink("lo", 65536, true) })
	socket := filepath.Join(b.TempDir(), "api")
	command := r.start(m, process, socket)
	if testing.Verbose() {
		command.Stderr = os.Stderr
	}
	m.host.try(b, command.Start)
	m.programs = append(m.programs, command.Process)
	b.Cleanup(func() {
		command.Process.Kill()
		command.Wait()
	})
	testutil.Eventually(b, name+" makes its interface", func() (there bool) {
		inside.do(func() {
			if link, err := netlink.LinkByName("tap0"); err == nil {
				addresses, _ := netlink.AddrList(link, netlink.FAMILY_V4)
				there = len(addresses) > 0
			}
		})
		return there
	})
	if name != slirp {
		return
	}
	testutil.Eventually(b, name+" takes requests", func() bool {
		_, err := os.Stat(socket)
		return err == nil
	})
	for _, protocol := range []string{"tcp", "udp"} {
		if err := askSlirp(socket, protocol, m.hostAddr, r); err != nil {
			b.Fatalf("%s: forward %s: %v", name, protocol, err)
		}
	}
}

// askSlirp makes slirp4netns forward a port of the host.
func askSlirp(socket, protocol string, host netip.Addr, r rival) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	request := map[string]any{"execute": "add_hostfwd", "arguments": map[string]any{
		"proto": protocol, "host_addr": host, "host_port": r.port, "guest_addr": r.address, "guest_port": r.port,
	}}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return err
	}
	var answer struct {
		Error any `json:"error"`
	}
	if err := json.NewDecoder(conn).Decode(&answer); err != nil {
		return err
	}
	if answer.Error != nil {
		return fmt.Errorf("%v", answer.Error)
	}
	return nil
}
