package vxlan

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// stepdCode is the DSCP of packets that slurmstepd sends from a pod, until the pod's host has
// seen them. slurmstepd runs in the network of its tasks, and its connections to slurmctld and
// srun must pass whatever the policy: a slurmstepd that cannot report its end never ends, and
// Slurm drains the node. The host cannot see who sent a packet, and the kernel clears marks when
// a packet leaves its network namespace. The code is of a pool for local use (RFC 2474, 6).
const stepdCode = "0x3f"

// podRules returns the rules in the namespace of a pod. Only packets of root's sockets keep or
// get the code. The rules see the host's numbers of users: a task that is root in its own user
// namespace counts as its user. In a pod for sessions, nobody gets the code.
func podRules(sessions bool) string {
	r := &writer{}
	r.text("add table inet " + table + "\ndelete table inet " + table + "\n")
	r.block("table inet "+table, func() {
		r.block("chain output", func() {
			r.line("type filter hook output priority 0; policy accept;")
			for _, header := range []string{"ip", "ip6"} {
				if !sessions {
					r.line("meta skuid 0 meta l4proto { tcp, udp } %s dscp set %s accept", header, stepdCode)
				}
				// A packet without a socket, such as a reset, has no user.
				r.line("%[1]s dscp %[2]s %[1]s dscp set cs0", header, stepdCode)
			}
		})
	})
	return r.String()
}

// MarkStepd loads the rules that mark packets of slurmstepd in the namespace of a pod. In a pod
// for sessions, the rules only keep users from marking packets. MarkStepd may be called again. It
// must precede the rules of the host that trust the mark. After an error the pod is Unmarked.
func MarkStepd(ctx context.Context, nft, path string, sessions bool) error {
	var err error
	linux.OnNewThread(func() { err = markStepd(ctx, nft, path, sessions) })
	if err != nil {
		return fmt.Errorf("mark packets of slurmstepd in %s: %w", path, err)
	}
	return nil
}

func markStepd(ctx context.Context, nft, path string, sessions bool) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	return try(ctx, nft, podRules(sessions))
}

// ofStepd accepts marked packets. It names no destination, because srun may run on any host. But
// srun, slurmctld and slurmd have unprivileged ports, so a program with the set-user-ID bit,
// which is root too, does not reach sshd or a mail server beyond the policy.
func (r *ruleset) ofStepd() {
	for _, kind := range r.kinds() {
		r.line("%s dscp %s tcp dport 1024-65535 accept", kind.header, stepdCode)
		for _, protocol := range []string{"udp", "tcp"} {
			// slurmstepd may have to look up their names.
			r.line("%s dscp %s %s dport 53 accept", kind.header, stepdCode, protocol)
		}
	}
}

// distrustMark removes the mark from packets of unmarked pods, before the rules that look at it.
func (r *ruleset) distrustMark() {
	for _, kind := range r.kinds() {
		var pods []string
		for _, n := range r.Networks {
			for _, pod := range n.Local {
				if pod.Unmarked {
					pods = append(pods, kind.of(pod.Address).String())
				}
			}
		}
		if len(pods) == 0 {
			return
		}
		r.block("chain distrust_mark"+kind.suffix, func() {
			r.line("type filter hook prerouting priority -11; policy accept;")
			r.line("%[1]s saddr { %[2]s } %[1]s dscp %[3]s %[1]s dscp set cs0", kind.header, join(pods), stepdCode)
		})
	}
}

// clearMark removes the mark from packets that leave this host, after the rules that look at it.
func (r *ruleset) clearMark() {
	r.block("chain clear_mark", func() {
		r.line("type filter hook forward priority -8; policy accept;")
		for _, kind := range r.kinds() {
			r.line("iifname %[1]q %[2]s dscp %[3]s %[2]s dscp set cs0", r.podLinks(), kind.header, stepdCode)
		}
	})
}
