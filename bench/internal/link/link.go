// Package link changes the network between hosts, and their tuning, while a command
// runs. It is the operator's part of the bench: it needs root. A plan defines the
// links, and the bench itself records the settings in effect.
package link

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/profiles"
)

// setting is a value of the system that can be read and set.
type setting struct {
	what, value string
	// get prints the value, and set sets it to $1. Both are shell scripts.
	get, set string
	// machine is set if the setting belongs to the whole machine, even if a host is
	// only a namespace.
	machine bool
	// device names the interface that has the setting, if any. The setting disappears
	// with the interface.
	device string
	// absent is set if the setting may not exist before up makes it.
	absent bool
}

// fileSettings returns the settings of a profile that are files.
func fileSettings(profile profiles.Profile) (all []setting, err error) {
	for _, key := range slices.Sorted(maps.Keys(profile.Sysctls)) {
		path := "/proc/sys/" + strings.ReplaceAll(key, ".", "/")
		switch key {
		case "vm.dirty_ratio", "vm.dirty_background_ratio":
			all = append(all, share(path, strings.TrimSuffix(path, "ratio")+"bytes", profile.Sysctls[key]))
		default:
			all = append(all, file(path, profile.Sysctls[key]))
		}
	}
	for _, pattern := range slices.Sorted(maps.Keys(profile.Files)) {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("look for %s: %w", pattern, err)
		}
		if len(found) == 0 {
			found = []string{pattern} // reported as missing later
		}
		for _, path := range found {
			all = append(all, file(path, profile.Files[pattern]))
		}
	}
	return all, nil
}

// said returns a script that passes the output of a command on. It captures the output
// first, because the status of a pipe is that of its last program.
func said(command, then string) string {
	return "said=$(" + command + `) || exit 1; printf '%s\n' "$said" | ` + then
}

// lossSettings returns the settings that drop a share of the incoming packets.
func lossSettings(loss, device string) (all []setting, err error) {
	// Not every kernel has netem, so a rule drops incoming packets at the same
	// rate.
	part, err := lost(loss)
	if err != nil {
		return nil, err
	}
	rule := fmt.Sprintf("table netdev berth_bench { chain lose { type filter hook ingress device %q priority 0; numgen random mod %d < %d drop; }; }", device, parts, part)
	all = append(all, setting{
		what: "loss", value: loss, device: device, absent: true,
		get: "if nft list table netdev berth_bench >/dev/null 2>&1; then echo " + loss + "; fi",
		set: `if [ -z "$1" ]; then nft delete table netdev berth_bench; else nft ` + quote(rule) + "; fi",
	})
	// Only root may list rules, but any user can read the alias of an
	// interface.
	alias := record.LossAlias + loss
	all = append(all, setting{
		what: "loss, for records", value: alias, device: device, absent: true,
		get: said("ip -o link show dev "+quote(device), `sed -n 's/.*[\\ ]alias //p'`),
		set: `[ "$1" != ` + quote(alias) + " ] || nft list table netdev berth_bench >/dev/null || exit 1; ip link set dev " + quote(device) + ` alias "$1"`,
	})
	return all, nil
}

// settings returns a link's settings in the order of their application.
func settings(l plan.Link, device string) (all []setting, err error) {
	profile := profiles.Profile{}
	if l.Profile != "" {
		if profile, err = profiles.Read(l.Profile); err != nil {
			return nil, err
		}
	}
	name := device
	device = quote(device)
	if all, err = fileSettings(profile); err != nil {
		return nil, err
	}
	if l.MTU != 0 {
		all = append(all, setting{
			what: "mtu", value: fmt.Sprint(l.MTU), device: name,
			get: said("ip -o link show dev "+device, `sed 's/.* mtu \([0-9]*\) .*/\1/'`), set: "ip link set dev " + device + ` mtu "$1"`,
		})
	}
	features := maps.Clone(profile.Features)
	if features == nil {
		features = map[string]string{}
	}
	if l.Offloads != "" {
		features["tso"], features["gso"] = l.Offloads, l.Offloads
		if l.Offloads == "off" {
			features["gro"] = "off"
		}
	}
	for _, feature := range slices.Sorted(maps.Keys(features)) {
		long := map[string]string{"tso": "tcp-segmentation-offload", "gso": "generic-segmentation-offload", "gro": "generic-receive-offload"}[feature]
		all = append(all, setting{
			what: feature, value: features[feature], device: name,
			get: said("ethtool -k "+device, "sed -n 's/^"+long+`: \([a-z]*\).*/\1/p'`), set: "ethtool -K " + device + " " + feature + ` "$1"`,
		})
	}
	for _, ring := range slices.Sorted(maps.Keys(profile.Rings)) {
		all = append(all, setting{
			what: ring + " ring", value: profile.Rings[ring], device: name,
			get: said("ethtool -g "+device, "sed '1,/^Current/d' | sed -n 's/^"+strings.ToUpper(ring)+`:[^0-9]*\([0-9]*\)$/\1/p'`),
			set: "ethtool -G " + device + " " + ring + ` "$1"`,
		})
	}
	if l.Loss != "" {
		loss, err := lossSettings(l.Loss, name)
		if err != nil {
			return nil, err
		}
		all = append(all, loss...)
	}
	if queue := queueing(l); queue != "" {
		all = append(all, setting{
			what: "queue", value: queue, device: name, absent: true,
			get: said("tc qdisc show dev "+device, rootQueue(queue, l.Rate)),
			set: "tc qdisc del dev " + device + ` root 2>/dev/null; [ -z "$1" ] || tc qdisc add dev ` + device + " root $1",
		})
	}
	return all, nil
}

// queueing returns tc's arguments for a link's rate.
func queueing(l plan.Link) string {
	if l.Rate == "" {
		return ""
	}
	// At 10 Gbit/s a burst of 2 MB takes 1.6 ms, so a timer may be that late without a loss
	// of rate.
	return "tbf rate " + l.Rate + " burst 2mb latency 10ms"
}

// rootQueue returns the end of a script that reads tc's description of a device. The
// script prints queue if the device has a queue of that rate. It prints nothing for the
// kernel's default queue, which comes back when another is removed. It fails for any other
// queue, because that would not come back.
func rootQueue(queue, rate string) string {
	return `awk -v queue=` + quote(queue) + ` -v wanted=` + quote(rate) + ` '
		function bits(text, unit) {
			unit = tolower(text)
			gsub(/[0-9.]/, "", unit)
			return (text + 0) * of[unit]
		}
		BEGIN { of["bit"] = 1; of["kbit"] = 1e3; of["mbit"] = 1e6; of["gbit"] = 1e9; of["tbit"] = 1e12 }
		/^qdisc / && / root / && $3 != "0:" {
			found = $0
			for (i = 1; i < NF; i++) if ($2 == "tbf" && $i == "rate") ratio = bits($(i + 1)) / bits(wanted)
		}
		END {
			if (ratio > 0.999 && ratio < 1.001) print queue
			else if (found) { print "there is a queue of somebody else, which would not come back: " found >"/dev/stderr"; exit 1 }
		}'`
}

// parts is the denominator of a loss ratio.
const parts = 100000

// lost parses a loss in percent, such as 0.1%, and returns how many of parts packets it
// is, at least 1.
func lost(loss string) (int, error) {
	percent, err := strconv.ParseFloat(strings.TrimSuffix(loss, "%"), 64)
	if err != nil || percent <= 0 || percent > 100 {
		return 0, fmt.Errorf("loss %q: give a part such as 0.1%%", loss)
	}
	n := int(math.Round(percent / 100 * parts))
	if n == 0 {
		return 0, fmt.Errorf("loss %q: give at least %g%%", loss, 100.0/parts)
	}
	return n, nil
}

// file returns the setting of a file of the kernel. Some files show all values,
// with the current one in brackets.
func file(path, value string) setting {
	name := quote(path)
	return setting{
		what: path, value: value, machine: true,
		get: "text=$(cat " + name + `) || exit 1; printf '%s' "$text" | tr '\t' ' ' | sed 's/.*\[\(.*\)\].*/\1/'`, set: `printf '%s' "$1" >` + name,
	}
}

// share returns the setting of a file for a percentage that has a second file in
// bytes: writing one sets the other to 0 (vm.dirty_ratio in the kernel's
// admin-guide). Its value is "bytes N" where the second file counts.
func share(path, bytes, value string) setting {
	s := file(path, value)
	other := quote(bytes)
	s.get = "n=$(cat " + other + `) && [ "$n" != 0 ] && echo "bytes $n" && exit; ` + s.get
	s.set = `case $1 in "bytes "*) printf '%s' "${1#bytes }" >` + other + ` ;; *) ` + s.set + ` ;; esac`
	return s
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Host is a place with settings: the namespaces of this process, or the network
// namespace at a path.
type Host struct{ Namespace string }

// command returns the command line that runs a shell script on the host.
func (h Host) command(script string, args ...string) []string {
	argv := append([]string{"sh", "-c", script, "sh"}, args...)
	if h.Namespace == "" {
		return argv
	}
	return append([]string{"nsenter", "--net=" + h.Namespace, "--"}, argv...)
}

// ask runs a command and returns its standard output without the space around it.
func ask(ctx context.Context, argv []string) (string, error) {
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var said strings.Builder
	command.Stderr = &said
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

// Undo holds the commands that undo a change.
type Undo struct {
	// Get prints the value, Before is the former value, and Set restores it. Gone
	// succeeds if the setting's interface no longer exists, so that nothing is left to
	// undo. Gone is empty if the setting belongs to no interface.
	Get, Set, Gone []string
	Before         string
}

// shows returns a command that fails where the interface does not exist.
func (h Host) shows(device string) []string { return h.command(`ip -o link show dev "$1"`, device) }

// lacks returns a command that succeeds where the interface does not exist, and
// fails where that cannot be determined.
func (h Host) lacks(device string) []string {
	return h.command(`ip -o link show >/dev/null && ! ip -o link show dev "$1" >/dev/null 2>&1`, device)
}

// up sets up a link on hosts. Before each change, record receives its Undo. A
// setting that cannot be made is reported and is no error: records hold the
// settings in effect.
func up(ctx context.Context, l plan.Link, device string, hosts []Host, record func(Undo) error, warn func(string)) error {
	all, err := settings(l, device)
	if err != nil {
		return err
	}
	done := map[string]bool{}
	tried, made := 0, 0
	for _, host := range hosts {
		if slices.ContainsFunc(all, func(s setting) bool { return s.device != "" }) {
			if _, err := ask(ctx, host.shows(device)); err != nil {
				return fmt.Errorf("look for the interface %s: %w; --device names that of the link", device, err)
			}
		}
		for _, s := range all {
			if done[s.what] {
				continue // set on the machine, for all hosts
			}
			tried++
			err := s.make(ctx, host, record)
			if err != nil && s.machine && host.Namespace != "" {
				err = s.make(ctx, Host{}, record)
				done[s.what] = true
			}
			if errors.Is(err, errUndo) {
				return err
			}
			if err != nil {
				warn(fmt.Sprintf("not set: %s: %v", s.what, err))
				continue
			}
			made++
		}
	}
	if tried > 0 && made == 0 {
		return errors.New("no setting of the link could be made, so figures would be for the hosts as they are: call this as root, with the programs and the kernel that the settings need")
	}
	return nil
}

// errUndo is the error of a change that could not be recorded, and would never be
// undone.
var errUndo = errors.New("record how to undo the change") //nolint:gochecknoglobals // a constant

// make makes a setting on a host, unless it has the wanted value already. Before the
// change, record receives its Undo; make returns errUndo if that fails. It returns an error
// if the value differs after the change.
func (s setting) make(ctx context.Context, host Host, record func(Undo) error) error {
	before, err := ask(ctx, host.command(s.get))
	if err != nil {
		return err
	}
	if before == s.value {
		return nil
	}
	if before == "" && !s.absent {
		return errors.New("this machine has no such setting")
	}
	undo := Undo{Get: host.command(s.get), Before: before, Set: host.command(s.set, before)}
	if s.device != "" {
		undo.Gone = host.lacks(s.device)
	}
	if err := record(undo); err != nil {
		return fmt.Errorf("%w: %w", errUndo, err)
	}
	if _, err := ask(ctx, host.command(s.set, s.value)); err != nil {
		return err
	}
	after, err := ask(ctx, host.command(s.get))
	if err == nil && after != s.value {
		err = fmt.Errorf("it is %s instead of %s", after, s.value)
	}
	return err
}
