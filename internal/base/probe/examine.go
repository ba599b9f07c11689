package probe

import (
	"context"
	"os"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"
)

// Examine runs every probe of this package, including trials, and returns the
// results in the order of the report. libexec is berth's directory of bundled
// programs.
func (h *Host) Examine(ctx context.Context, trials Trials, libexec string) Report {
	gid := os.Getgid()
	ids := h.AskNameService(ctx, h.IDMap(h.uid, gid), h.uid, gid)
	best, rejected := h.StateDir(h.StateDirs())
	if trials.StateDir == "" {
		trials.StateDir = best.Path
	}
	tried := trials.run(ctx, h, ids)
	memory := h.Memory()
	if trials.Memory != nil {
		memory = trials.Memory(ctx, memory)
	}

	report := h.describe()
	add := func(results ...Result) { report.Results = append(report.Results, results...) }
	add(checkKernel(h))
	add(checkNamespaces(h, tried)...)
	add(checkNamespaceLimits(h))
	add(checkMounts(h, tried)...)
	add(checkNetwork(h, tried)...)
	add(checkSeccomp(h, tried)...)
	add(checkStateDir(h, best, rejected), checkPrograms(h, libexec), checkMemory(memory, best), checkCPUs(h))
	add(checkLimits(h)...)
	add(checkPods(h))
	add(checkIDs(h, ids, tried)...)
	add(checkOverlay(best, tried), checkFUSE(tried), checkPivot(h, tried))
	add(checkCgroup(h), checkInotify(h, tried), checkKeyrings(h, tried), checkPidfd(tried))
	add(checkResolvers(h), checkIPv6(h, tried), checkMunge(h, ctx), checkVisibility(h), checkSecurityModules(h), checkHome(h), checkBuffers(h), checkMemlock(h))
	report.Conclude()
	return report
}

// describe returns a report without results.
func (h *Host) describe() Report {
	report := Report{Version: ReportVersion, UID: h.uid, User: h.users.name(h.uid), Kernel: h.line("/proc/sys/kernel/osrelease")}
	report.Host, _ = os.Hostname()
	if report.User == "" {
		report.User = strconv.Itoa(h.uid)
		if u, err := user.LookupId(report.User); err == nil {
			report.User = u.Username
		}
	}
	if report.Kernel == "" {
		var name unix.Utsname
		if unix.Uname(&name) == nil {
			report.Kernel = unix.ByteSliceToString(name.Release[:])
		}
	}
	return report
}
