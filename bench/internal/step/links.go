package step

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/bench/internal/record"
)

// offloads are those that join packets, or take them apart, by ethtool's names.
var offloads = map[string]uint32{ //nolint:gochecknoglobals // a constant
	"tso": unix.ETHTOOL_GTSO, "gso": unix.ETHTOOL_GGSO, "gro": unix.ETHTOOL_GGRO,
}

// links tells how this machine's interfaces to others are set up, as far as a user
// may know.
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
		if said := queue(i.Name); said != "" {
			settings[at+"queue"] = said
		}
	}
	return settings
}

// ask is a question of ethtool's that everybody may put (ethtool_value of
// linux/ethtool.h, in an ifreq).
func ask(socket int, device string, command uint32) (on, ok bool) {
	value := struct{ command, data uint32 }{command: command}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:unix.IFNAMSIZ-1], device)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	return value.data != 0, errno == 0
}

// queue is how packets wait for a device, in the words of tc.
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
