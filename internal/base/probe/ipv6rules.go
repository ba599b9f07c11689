package probe

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// ipv6Rules has one rule for each kind of expression that kube-proxy and the
// portmap plugin use. Distributions ship expressions that read an IPv6 header,
// and answers to a packet, as separate kernel modules.
const ipv6Rules = `table ip6 berth-probe {
	map services { type ipv6_addr . inet_proto . inet_service : verdict ; }
	set clients { type ipv6_addr ; flags dynamic,timeout ; timeout 1h ; }
	chain target { meta l4proto tcp dnat to [::1]:80 ; }
	chain forward { type filter hook forward priority 0 ;
		ct state new reject
	}
	chain before { type nat hook prerouting priority 0 ;
		ip6 daddr . meta l4proto . th dport vmap @services
		fib daddr type local numgen random mod 1 vmap { 0 : goto target }
		update @clients { ip6 saddr }
	}
	chain after { type nat hook postrouting priority 0 ;
		masquerade fully-random
	}
}
`

// RefusedIPv6 returns why the kernel takes no rules for IPv6 from nft, the
// program of that path, in a network namespace of a user; "" where it takes
// them. Where there can be no such namespace, that is for others to find. It
// takes some milliseconds.
func RefusedIPv6(ctx context.Context, nft string) string {
	own := oneID(os.Getuid(), os.Getgid())
	command := exec.CommandContext(ctx, nft, "-f", "-")
	command.Env = []string{}
	command.Stdin = strings.NewReader(ipv6Rules)
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: sysMap(own.UIDs), GidMappings: sysMap(own.GIDs),
		Pdeathsig: syscall.SIGKILL,
	}
	said, err := command.CombinedOutput()
	if ended := (&exec.ExitError{}); !errors.As(err, &ended) {
		return ""
	}
	// Below the first line nft shows the rule.
	reason, _, _ := strings.Cut(strings.TrimSpace(string(said)), "\n")
	return "nft: " + reason
}
