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
	add(h.checkKernel())
	add(h.checkNamespaces(tried)...)
	add(h.checkNamespaceLimits())
	add(h.checkMounts(tried)...)
	add(h.checkNetwork(tried)...)
	add(h.checkSeccomp(tried)...)
	add(h.checkStateDir(best, rejected), h.checkPrograms(libexec), checkMemory(memory, best), h.checkCPUs())
	add(h.checkLimits()...)
	add(h.checkPods())
	add(h.checkIDs(ids, tried)...)
	add(h.checkOverlay(best, tried), h.checkFUSE(tried), h.checkPivot(tried))
	add(h.checkCgroup(), h.checkInotify(tried), h.checkKeyrings(tried), h.checkPidfd(tried))
	add(h.checkResolvers(), h.checkIPv6(tried), h.checkMunge(ctx), h.checkVisibility(), h.checkSecurityModules(), h.checkHome(), h.checkBuffers(), h.checkMemlock())
	report.Conclude()
	return report
}

// describe returns a report without results.
func (h *Host) describe() Report {
	report := Report{Version: ReportVersion, UID: h.uid, User: h.userName(h.uid), Kernel: h.line("/proc/sys/kernel/osrelease")}
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
