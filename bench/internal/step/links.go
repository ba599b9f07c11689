package step

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/bench/internal/record"
)

// offloads lists the offloads that join or split packets, by ethtool's names.
var offloads = map[string]uint32{ //nolint:gochecknoglobals // a constant
	"tso": unix.ETHTOOL_GTSO, "gso": unix.ETHTOOL_GGSO, "gro": unix.ETHTOOL_GGRO,
}

// links returns the settings of this machine's network interfaces, except the loopback, as
// far as a user can read them.
func links() map[string]string {
	settings := map[string]string{}
	interfaces, err := net.Interfaces()
	if err != nil {
		return settings
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return settings
	}
	defer unix.Close(socket)
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil || len(addresses) == 0 || i.Flags&net.FlagLoopback != 0 || i.Flags&net.FlagUp == 0 {
			continue
		}
		at := record.LinkSetting + i.Name + " "
		settings[at+"mtu"] = strconv.Itoa(i.MTU)
		for name, command := range offloads {
			if on, ok := ask(socket, i.Name, command); ok {
				settings[at+name] = map[bool]string{true: "on", false: "off"}[on]
			}
		}
		if rx, tx, ok := rings(socket, i.Name); ok {
			settings[at+"rx ring"], settings[at+"tx ring"] = rx, tx
		}
		if said := queue(i.Name); said != "" {
			settings[at+"queue"] = said
		}
		if loss, is := strings.CutPrefix(alias(i.Name), record.LossAlias); is {
			settings[at+"loss"] = loss
		}
	}
	return settings
}

// ask returns a setting of a device that any user may read (ethtool_value in
// linux/ethtool.h). ok reports whether the device has the setting.
func ask(socket int, device string, command uint32) (on, ok bool) {
	value := struct{ command, data uint32 }{command: command}
	ok = ethtool(socket, device, unsafe.Pointer(&value))
	return value.data != 0, ok
}

// rings returns the sizes of the card's packet rings (ethtool_ringparam), if it
// has any.
func rings(socket int, device string) (rx, tx string, ok bool) {
	value := struct {
		command, _, _, _, _, rx, _, _, tx uint32
	}{command: unix.ETHTOOL_GRINGPARAM}
	ok = ethtool(socket, device, unsafe.Pointer(&value))
	return strconv.Itoa(int(value.rx)), strconv.Itoa(int(value.tx)), ok && value.rx+value.tx > 0
}

// ethtool sends an ethtool request to a device (SIOCETHTOOL), and reports whether it
// succeeded. question points to a struct that receives the answer.
func ethtool(socket int, device string, question unsafe.Pointer) bool {
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: question}
	copy(request.name[:unix.IFNAMSIZ-1], device)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	return errno == 0
}

// alias returns the alias of an interface, or "".
func alias(device string) string {
	// /sys would show the interfaces of the network namespace that mounted it.
	all, err := syscall.NetlinkRIB(syscall.RTM_GETLINK, syscall.AF_UNSPEC)
	if err != nil {
		return ""
	}
	messages, err := syscall.ParseNetlinkMessage(all)
	if err != nil {
		return ""
	}
	for _, m := range messages {
		attributes, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			continue // the end of the list
		}
		text := map[uint16]string{}
		for _, a := range attributes {
			text[a.Attr.Type] = strings.TrimRight(string(a.Value), "\x00")
		}
		if text[unix.IFLA_IFNAME] == device {
			return text[unix.IFLA_IFALIAS]
		}
	}
	return ""
}

// queue returns a device's queueing discipline in tc's format, or "" if tc fails.
func queue(device string) string {
	for _, tc := range []string{"tc", "/usr/sbin/tc", "/sbin/tc"} {
		command := exec.Command(tc, "qdisc", "show", "dev", device)
		command.Env = append(os.Environ(), "LC_ALL=C")
		if out, err := command.Output(); err == nil {
			return strings.Join(strings.Fields(string(out)), " ")
		}
	}
	return ""
}
