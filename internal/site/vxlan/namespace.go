package vxlan

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/site/siteconf"
)

// NewNamespace makes a network namespace, starts its loopback and mounts it on a file. Without
// ipv6, later interfaces in it get no IPv6 addresses by themselves. It does nothing if the
// namespace exists.
func NewNamespace(path string, ipv6 bool) error {
	if IsNamespace(path) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	file.Close()
	linux.OnNewThread(func() { err = newNamespace(path, ipv6) })
	if err != nil {
		return errors.Join(fmt.Errorf("make network namespace %s: %w", path, err), os.Remove(path))
	}
	return nil
}

func newNamespace(path string, ipv6 bool) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("start the loopback: %w", err)
	}
	if !ipv6 {
		// Interfaces of pods never have link-local addresses, which would be dropped
		// as spoofed. They have other IPv6 addresses only if the site has a range
		// (configureIPv6). The loopback keeps its address, because without one sshd
		// forwards no X11 displays.
		err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
}

// IsNamespace reports whether a namespace is mounted on a file.
func IsNamespace(path string) bool {
	var stat unix.Statfs_t
	return unix.Statfs(path, &stat) == nil && stat.Type == unix.NSFS_MAGIC
}

// RemoveNamespace removes a namespace and may be called twice. Processes in the namespace keep
// it until they exit.
func RemoveNamespace(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount network namespace %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("remove network namespace: %w", err)
	}
	return nil
}

// pod gives a pod its interface. The name on the host's side is derived from the pod's address,
// so an interface that exists is the right one.
func (k *Kernel) pod(s State, pod Pod, bridge netlink.Link, mtu int) error {
	if !IsNamespace(pod.Namespace) {
		return fmt.Errorf("%s is not a network namespace", pod.Namespace)
	}
	ns, err := netns.GetFromPath(pod.Namespace)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", pod.Namespace, err)
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter network namespace %s: %w", pod.Namespace, err)
	}
	defer inside.Close()

	name := podName(pod.Address)
	outer, err := netlink.LinkByName(name)
	if _, missing := inside.LinkByName(podLink); missing != nil || err != nil || connectedOtherwise(outer, bridge) {
		if err == nil {
			if err := netlink.LinkDel(outer); err != nil {
				return fmt.Errorf("remove interface %s: %w", name, err)
			}
		}
		if err := forgetConnections(s.addresses(pod.Address)); err != nil {
			return err
		}
		if outer, err = newPair(name, pod, ns, mtu); err != nil {
			return err
		}
	}
	if bridge == nil {
		if err := s.lead(pod, outer); err != nil {
			return err
		}
		return configure(inside, s, pod)
	}
	if err := plug(outer, bridge); err != nil {
		return err
	}
	if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: outer.Attrs().Index, Family: unix.AF_BRIDGE, Flags: unix.NTF_MASTER, State: unix.NUD_NOARP, HardwareAddr: siteconf.MAC(pod.Address)}); err != nil {
		return fmt.Errorf("set forwarding entry of %s: %w", name, err)
	}
	for _, address := range s.addresses(pod.Address) {
		if err := netlink.NeighSet(neighbour(bridge, address, siteconf.MAC(pod.Address))); err != nil {
			return fmt.Errorf("set neighbour %s: %w", address, err)
		}
	}
	if err := netlink.LinkSetUp(outer); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	return configure(inside, s, pod)
}

func newPair(name string, pod Pod, ns netns.NsHandle, mtu int) (netlink.Link, error) {
	err := netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu, TxQLen: -1},
		PeerName:  podLink, PeerMTU: uint32(mtu), PeerHardwareAddr: siteconf.MAC(pod.Address), PeerNamespace: netlink.NsFd(ns),
	})
	if err != nil {
		return nil, fmt.Errorf("create interface %s: %w", name, err)
	}
	if err := setting("ipv6/conf/"+name+"/disable_ipv6", "1"); err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("configure interface %s: %w", name, err)
	}
	return netlink.LinkByName(name)
}

// configure sets up the interface inside a pod. All pods are on its link, according to its
// routes; but pods of other users do not answer there.
func configure(inside *netlink.Handle, s State, pod Pod) error {
	link, err := inside.LinkByName(podLink)
	if err != nil {
		return fmt.Errorf("find the interface of the pod: %w", err)
	}
	mask := net.CIDRMask(s.Pods.Bits(), 32)
	address := &netlink.Addr{IPNet: &net.IPNet{IP: pod.Address.AsSlice(), Mask: mask}}
	if s.Routed != nil {
		return errors.Join(configureRouted(inside, link, s, address), s.configureIPv6(inside, link, pod))
	}
	if err := errors.Join(inside.AddrReplace(link, address), inside.LinkSetUp(link)); err != nil {
		return fmt.Errorf("configure the interface of the pod: %w", err)
	}
	// The gateway address is on no interface of the host, so with arp_ignore the host would not
	// answer ARP for it.
	if err := knowHost(inside, link, s); err != nil {
		return err
	}
	all := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	if err := inside.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: all, Gw: s.Gateway.AsSlice()}); err != nil {
		return fmt.Errorf("set the default route of the pod: %w", err)
	}
	return s.configureIPv6(inside, link, pod)
}
