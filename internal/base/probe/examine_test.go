package probe

import (
	"bytes"
	"context"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/testutil"
)

// TestMain lets the test binary stand in for the program that calls itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "trial" {
		os.Exit(RunTrial(os.Args[2:], os.Stdin, os.Stdout))
	}
	if len(os.Args) > 1 && os.Args[1] == FUSEArg {
		os.Exit(TryFUSE(os.Stdout))
	}
	if len(os.Args) > 2 && os.Args[1] == "hang" {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, unix.SIGTERM)
		if err := os.WriteFile(os.Args[2], nil, 0o600); err != nil {
			panic(err)
		}
		<-signals
	}
	os.Exit(m.Run())
}

func TestExamineHere(t *testing.T) {
	testutil.Require(t, testutil.UserNS)
	state := t.TempDir()
	report := Local().Examine(t.Context(), Trials{Command: []string{"trial"}, StateDir: state}, state)
	byName := map[string]Result{}
	for _, result := range report.Results {
		if result.Name == "" || result.Title == "" || result.Level == "" || result.OK == "" || result.Found == "" {
			t.Errorf("incomplete: %+v", result)
		}
		if result.OK == Yes && (result.Cost != "" || result.Remedy != Remedy{}) {
			t.Errorf("costs something although it is there: %+v", result)
		}
		if result.OK == No && result.Cost == "" {
			t.Errorf("says no and not what that costs: %+v", result)
		}
		if _, twice := byName[result.Name]; twice {
			t.Errorf("%s is there twice", result.Name)
		}
		byName[result.Name] = result
	}
	left, err := os.ReadDir(state)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != unix.ECHILD {
		t.Errorf("children are left: %v", err)
	}
	// A run asks for itself, and has to get the same answer.
	if err := MountFUSE(t.Context()); (err == nil) != (byName["fuse"].OK == Yes) {
		t.Errorf("mount with FUSE: %v, but the examination found %+v", err, byName["fuse"])
	}
	if byName["user-namespace"].OK != Yes {
		t.Errorf("a test can make user namespaces, but: %s", byName["user-namespace"].Found)
	}
	// Every trial must have come to an answer.
	for _, name := range []string{"ipv6", "own-proc", "own-sys", "own-tmpfs", "bridge-veth", "nftables", "pod-shares", "tun", "seccomp", "overlayfs", "fuse", "pivot-root"} {
		if byName[name].OK == Unknown {
			t.Errorf("%s: %s", name, byName[name].Found)
		}
	}
}

// A trial that could not be made is no yes.
func TestFUSETrialOutcomes(t *testing.T) {
	refused := exec.Command("false").Run()
	for _, c := range []struct {
		name, said string
		err        error
		want       string
	}{
		{"it mounts", "", nil, ""},
		{"it may not", "mount fuse: operation not permitted", refused, "mount fuse: operation not permitted"},
		{"it dies", "", refused, "try to mount with FUSE: exit status 1"},
		{"no process", "", &os.PathError{Op: "fork/exec", Err: unix.EAGAIN}, "resource temporarily unavailable"},
		{"no memory", "", &os.PathError{Op: "fork/exec", Err: unix.ENOMEM}, "cannot allocate memory"},
		{"no more namespaces", "", &os.PathError{Op: "fork/exec", Err: unix.ENOSPC}, "no space left"},
		{"no user namespace, which others find", "", &os.PathError{Op: "fork/exec", Err: unix.EPERM}, ""},
	} {
		err := fuseOutcome([]byte(c.said), c.err)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// all returns outcomes where everything worked except the given ones.
func all(except ...outcome) outcomes {
	found := outcomes{}
	for _, trial := range []string{trialUser, trialIDMap, trialMountNS, trialNetNS, trialIPCNS, trialUTSNS, trialCgroupNS, trialPIDNS,
		trialProc, trialSys, trialCgroupfs, trialTmpfs, trialOverlay, trialOverlayRAM, trialFUSE, trialTUN, trialLinks, trialForwarding,
		trialSeccomp, trialNotify, trialNotifySend, trialPidfd, trialPivot, trialKeyring, trialInotify, trialNftables, trialConntrack} {
		found[trial] = outcome{Trial: trial}
	}
	for _, o := range except {
		found[o.Trial] = o
	}
	return found
}

func failed(trial string, errno unix.Errno) outcome { return newOutcome(trial, errno) }

func sysctls(pairs ...string) map[string]string {
	files := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		files["/proc/sys/"+strings.ReplaceAll(pairs[i], ".", "/")] = pairs[i+1] + "\n"
	}
	return files
}

func TestChecks(t *testing.T) {
	limits := sysctls("user.max_user_namespaces", "100000", "user.max_mnt_namespaces", "100000", "user.max_pid_namespaces", "100000",
		"user.max_net_namespaces", "20", "user.max_ipc_namespaces", "100000", "user.max_uts_namespaces", "100000", "user.max_cgroup_namespaces", "100000")
	inotify := sysctls("fs.inotify.max_user_instances", "128", "fs.inotify.max_user_watches", "65536")
	inotify["/proc/7/fd/3"] = "-> anon_inode:inotify"
	manyKeys := with(sysctls("kernel.keys.maxkeys", "200"), "/proc/key-users", "    0: 1 1/1 1/1000000 9/25000000\n 1000:   180 180/180 180/200 3000/20000\n")
	few := sysctls("fs.inotify.max_user_instances", "16", "fs.inotify.max_user_watches", "65536")
	few["/proc/7/fd/3"] = "-> anon_inode:inotify"
	container := map[string]string{"/proc/self/mountinfo": testFile(t, "mountinfo.container")}
	first := func(results ...Result) Result { return results[0] }
	named := func(name string, results []Result) Result {
		for _, r := range results {
			if r.Name == name {
				return r
			}
		}
		t.Fatalf("no result %s", name)
		return Result{}
	}
	tests := []struct {
		name   string
		result Result
		ok     State
		found  string
		cost   string
		remedy string
	}{
		{"old kernel", checkKernel(machine{files: sysctls("kernel.osrelease", "3.10.0-1160.el7.x86_64")}.host()), No, "3.10.0", "too old", "5.14"},
		{"RHEL 8", checkKernel(machine{files: sysctls("kernel.osrelease", "4.18.0-553.el8_10.x86_64")}.host()), Degraded, "4.18.0", "older than 5.14", "5.14"},
		{"RHEL 9", checkKernel(machine{files: sysctls("kernel.osrelease", "5.14.0-427.el9.x86_64")}.host()), Yes, "5.14", "", ""},
		{"6.8-rc1", checkKernel(machine{files: sysctls("kernel.osrelease", "6.8-rc1")}.host()), Yes, "6.8", "", ""},

		{"Ubuntu's AppArmor", first(checkNamespaces(machine{files: sysctls("kernel.apparmor_restrict_unprivileged_userns", "1")}.host(), all(failed(trialUser, unix.EACCES)))...),
			No, "apparmor_restrict_unprivileged_userns is 1", "cannot run", "apparmor_restrict_unprivileged_userns=0"},
		{"Debian's switch", first(checkNamespaces(machine{files: sysctls("kernel.unprivileged_userns_clone", "0")}.host(), all(failed(trialUser, unix.EPERM)))...),
			No, "unprivileged_userns_clone is 0", "cannot run", "sysctl -w kernel.unprivileged_userns_clone=1"},
		{"none allowed", first(checkNamespaces(machine{files: sysctls("user.max_user_namespaces", "0")}.host(), all(failed(trialUser, unix.ENOSPC)))...),
			No, "max_user_namespaces is 0", "cannot run", "sysctl -w user.max_user_namespaces=100000"},
		{"too many", first(checkNamespaces(machine{files: sysctls("user.max_user_namespaces", "10")}.host(), all(failed(trialUser, unix.ENOSPC)))...),
			No, "is reached", "cannot run", "lsns"},
		{"docker's filter", first(checkNamespaces(machine{files: map[string]string{"/proc/self/status": "Seccomp:\t2\n"}}.host(), all(failed(trialUser, unix.EPERM)))...),
			No, "seccomp filter is in force", "cannot run", "outside of the container"},
		{"network namespaces used up", named("network-namespace", checkNamespaces(machine{}.host(), all(failed(trialNetNS, unix.ENOSPC)))), No, "no space", "cannot run", "sysctl -w user.max_net_namespaces"},
		{"no mount namespace", named("own-proc", checkMounts(machine{}.host(), all(failed(trialMountNS, unix.EPERM)))), Unknown, "not checked", "", ""},
		{"few network namespaces", checkNamespaceLimits(machine{files: limits}.host()), Degraded, "user.max_net_namespaces", "beyond about 18", "user.max_net_namespaces=100000"},

		{"masked /proc", named("own-proc", checkMounts(machine{files: container}.host(), all(failed(trialProc, unix.EPERM)))), No, "not permitted", "/proc/kcore", "unmask=ALL"},
		{"masked /sys", named("own-sys", checkMounts(machine{files: container}.host(), all(failed(trialSys, unix.EPERM)))), No, "not permitted", "/sys read-only", "outside"},
		{"AppArmor stops mounts", named("own-tmpfs", checkMounts(machine{files: sysctls("kernel.apparmor_restrict_unprivileged_userns", "1")}.host(), all(failed(trialTmpfs, unix.EACCES)))), No, "denied", "takes the rights away", "restrict_unprivileged_userns=0"},

		{"tun closed", named("tun", checkNetwork(machine{files: map[string]string{"/dev/net/tun": ""}}.host(), all(failed(trialTUN, unix.EACCES)))), No, "denied", "nothing outside", "chmod 0666 /dev/net/tun"},
		{"tun absent", named("tun", checkNetwork(machine{}.host(), all(failed(trialTUN, unix.ENOENT)))), No, "no such file", "nothing outside", "modprobe tun"},
		{"no fib", named("nftables", checkNetwork(machine{}.host(), all(failed("nftables:fib", unix.ENOENT)))), No, "fib (no such file", "Services do not work", "modprobe -a nft_fib_ipv4 &&"},
		{"no connlimit", named("pod-shares", checkNetwork(machine{}.host(), all(failed("nftables:connlimit", unix.ENOENT)))), No, "connlimit (no such file", "one pod can keep", "modprobe -a nft_connlimit &&"},
		{"no limit", named("pod-shares", checkNetwork(machine{}.host(), all(failed("nftables:limit", unix.ENOENT)))), No, "limit (no such file", "one pod can keep", "modprobe -a nft_limit &&"},
		{"connlimit for shares", named("nftables", checkNetwork(machine{}.host(), all(failed("nftables:connlimit", unix.ENOENT)))), Yes, "kube-proxy", "", ""},
		{"no list of connections", named("pod-shares", checkNetwork(machine{}.host(), all(failed(trialConntrack, unix.EINVAL)))), No, "list of connections (invalid argument)", "one pod can keep", "modprobe -a nf_conntrack_netlink &&"},
		{"no network namespace for shares", named("pod-shares", checkNetwork(machine{}.host(), all(failed(trialNetNS, unix.EPERM)))), Unknown, "not checked", "", ""},
		{"no notify", named("seccomp-notify", checkSeccomp(machine{}.host(), all(failed(trialNotify, unix.EBUSY)))), No, "busy", "no fast path", "5.14"},
		{"ptrace", named("seccomp-notify", checkSeccomp(machine{files: sysctls("kernel.yama.ptrace_scope", "3")}.host(), all())), Degraded, "ptrace_scope is 3", "no fast path", "ptrace_scope=1"},

		{"little memory", checkMemory(machine{files: with(nil), env: map[string]string{"SLURM_MEM_PER_NODE": "512"}}.host().Memory(), Candidate{}), No, "512.0 MiB (SLURM_MEM_PER_NODE), not enforced", "need 640.0 MiB", "--mem=2G"},
		{"less memory", checkMemory(machine{files: with(nil), env: map[string]string{"SLURM_MEM_PER_NODE": "1024"}}.host().Memory(), Candidate{}), Degraded, "1.0 GiB", "little is left", "--mem=2G"},
		{"files", checkFiles(machine{limits: map[int]uint64{unix.RLIMIT_NOFILE: 1024}}.host()), No, "hard 1024", "run out", "hard nofile 524288"},
		{"files in a job", checkFiles(machine{limits: map[int]uint64{unix.RLIMIT_NOFILE: 4096}, env: map[string]string{"SLURM_JOB_ID": "1"}}.host()), Degraded, "hard 4096", "connections", "LimitNOFILE=524288"},
		{"processes", checkProcesses(machine{limits: map[int]uint64{unix.RLIMIT_NPROC: 1000}, files: map[string]string{"/proc/7/status": "Uid:\t1000\t1000\t1000\t1000\nThreads:\t600\n", "/proc/8/status": "Uid:\t0\t0\t0\t0\nThreads:\t900\n"}}.host()),
			No, "limit 1000 for each user, in use 600", "cannot start their threads", "nproc"},
		{"pids.max", checkProcesses(machine{files: rhel9(t, jobV2, v2job+"/pids.max", "1024\n"), limits: map[int]uint64{unix.RLIMIT_NPROC: math.MaxUint64}, env: map[string]string{"SLURM_JOB_ID": "1"}}.host()),
			Degraded, "job_4711/pids.max is 1024", "beyond about 74", "TasksMax=infinity"},
		{"address space", checkLimits(machine{limits: map[int]uint64{unix.RLIMIT_AS: 64<<30 - 1}}.host())[2], No, "hard limit 68719476735", "refuses", "'ulimit -H -v' has to allow 67108864 KiB"},
		{"enough address space", checkLimits(machine{limits: map[int]uint64{unix.RLIMIT_AS: 64 << 30}}.host())[2], Yes, "hard limit 68719476736", "", ""},
		{"stack", checkLimits(machine{limits: map[int]uint64{unix.RLIMIT_STACK: 1 << 20}}.host())[3], No, "hard limit 1048576", "refuses", "--propagate=NONE"},
		{"inotify", checkInotify(machine{files: inotify}.host(), all()), Yes, "in use 1 instances", "", ""},
		{"inotify used up", checkInotify(machine{files: few}.host(), all()), No, "16 instances", "cannot follow", "max_user_instances=8192"},
		{"many keys", checkKeyrings(machine{files: manyKeys}.host(), all()), Yes, "in use 180", "", ""},
		{"keys used up", checkKeyrings(machine{files: manyKeys}.host(), all(failed(trialKeyring, unix.EDQUOT))), No, "quota exceeded", "a node needs a keyring", "maxkeys=5000"},
		{"no keys", checkKeyrings(machine{}.host(), all()), Yes, "has none", "", ""},

		{"one uid", first(checkIDs(mapper("").host(), mapper("").host().IDMap(1000, 1000), all())...), No, "no subordinate ids for alice", "one uid only", "tee -a /etc/subuid"},
		{"map refused", first(checkIDs(mapper("alice:100000:65536\n").host(), mapper("alice:100000:65536\n").host().IDMap(1000, 1000), all(failed(trialIDMap, unix.EPERM)))...), No, "not permitted", "one uid only", "getent passwd 1000"},
		{"diskless", checkPivot(machine{files: map[string]string{"/proc/self/mountinfo": testFile(t, "mountinfo.diskless")}}.host(), all(failed(trialPivot, unix.EINVAL))), Yes, "diskless", "", ""},
		{"overlay on tmpfs only", checkOverlay(Candidate{Path: "/var/tmp"}, all(failed(trialOverlay, unix.EINVAL))), No, "it works on tmpfs", "copied", "BERTH_STATE_DIR"},
		{"cgroup in a job", checkCgroup(machine{files: rhel9(t, jobV2), env: map[string]string{"SLURM_JOB_ID": "1"}}.host()), No, "not writable", "watching", ""},
		{"hidepid", checkVisibility(machine{files: map[string]string{"/proc/self/mountinfo": testFile(t, "mountinfo.debian12-v1-job")}, writable: []string{"/proc/self/ns/user"}}.host()), Degraded, "hidepid=invisible", "ps and top", "kubectl exec"},
		{"noexec /tmp", checkHome(machine{files: map[string]string{"/proc/self/mountinfo": testFile(t, "mountinfo.ubuntu2404")}, env: map[string]string{"HOME": "/home/a"}}.host()), Degraded, "noexec: /tmp", "cannot be executed", "sh script.sh"},
		{"noexec programs", checkPrograms(machine{files: map[string]string{"/opt/libexec/berth": "dir"}, filesystems: map[string]filesystem{"/opt": {NoExec: true}}}.host(), "/opt/libexec/berth"), No, "noexec", "cannot be executed", "unpack berth"},
		{"memory as state", checkStateDir(machine{}.host(), Candidate{Path: "/dev/shm", Type: "tmpfs", Kind: KindMemory, FreeBytes: 8 << 30}, nil), Degraded, "/dev/shm (tmpfs", "in memory", "BERTH_STATE_DIR"},
		{"no state", checkStateDir(machine{}.host(), Candidate{}, []Candidate{{Path: "/home", Kind: KindNetwork, Reason: "nfs4 is a network file system"}}), No, "/home: nfs4", "no place", "BERTH_STATE_DIR"},
		{"loopback resolver", checkResolvers(machine{files: map[string]string{"/etc/resolv.conf": "search x\nnameserver 127.0.0.53\nnameserver\nnameserver bad\n"}}.host()), Yes, "127.0.0.53 (on the host's loopback", "", ""},
		{"no resolver", checkResolvers(machine{}.host()), No, "no nameserver", "names of their cluster", "resolv.conf"},
		{"no munge", checkMunge(machine{}.host(), t.Context()), No, "no socket", "other means", "munge.key"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := test.result
			remedy := r.Remedy.User + " " + r.Remedy.Admin
			if r.OK != test.ok || !strings.Contains(r.Found, test.found) || !strings.Contains(r.Cost, test.cost) || !strings.Contains(remedy, test.remedy) {
				t.Errorf("got %+v", r)
			}
			if test.cost == "" && r.Cost != "" || test.remedy == "" && strings.TrimSpace(remedy) != "" {
				t.Errorf("unexpected cost or remedy: %+v", r)
			}
		})
	}
}

// TestRunRefusalsAreRequired: berth run refuses hosts that lack these.
func TestRunRefusalsAreRequired(t *testing.T) {
	few := machine{files: map[string]string{"/proc/sys/fs/inotify/max_user_instances": strconv.Itoa(HeadWatchers - 1)}}.host()
	least := Memory{Bytes: HeadMemory + SmallPod}
	less := Memory{Bytes: least.Bytes - 1}
	if !least.Holds(HeadMemory) || less.Holds(HeadMemory) {
		t.Errorf("%d bytes hold a node: %t, one less: %t", least.Bytes, least.Holds(HeadMemory), less.Holds(HeadMemory))
	}
	report := Report{Results: []Result{checkInotify(few, nil), checkMemory(less, Candidate{}), checkMemory(least, Candidate{})}}
	report.Conclude()
	if report.Verdict != "berth runs here: no, it lacks: inotify, memory" {
		t.Errorf("got %q", report.Verdict)
	}
}

func TestConclude(t *testing.T) {
	report := Report{Results: []Result{
		{Title: "a", Level: Required, OK: Yes}, {Title: "b", Level: Recommended, OK: No},
		{Title: "c", Level: Optional, OK: No}, {Title: "d", Level: Recommended, OK: Degraded}, {Title: "e", Level: Required, OK: Unknown}}}
	report.Conclude()
	if !report.Runs || report.Verdict != "berth runs here: yes, without: b; limited: d; not known: e" {
		t.Errorf("got %v %q", report.Runs, report.Verdict)
	}
	report.Results = append(report.Results, Result{Title: "f", Level: Required, OK: No})
	report.Conclude()
	if report.Runs || report.Verdict != "berth runs here: no, it lacks: f" {
		t.Errorf("got %v %q", report.Runs, report.Verdict)
	}
}

func TestKernelVersion(t *testing.T) {
	for release, want := range map[string][2]int{"5.14.0-427.13.1.el9_4.x86_64": {5, 14}, "6.8-rc1": {6, 8}, "6.18.44-fc-v669": {6, 18}, "4.18.0": {4, 18}} {
		major, minor, ok := kernelVersion(release)
		if !ok || [2]int{major, minor} != want {
			t.Errorf("%s: %d.%d %v", release, major, minor, ok)
		}
	}
	for _, release := range []string{"", "x", "5", "5.", "a.b"} {
		if _, _, ok := kernelVersion(release); ok {
			t.Errorf("%q is no version", release)
		}
	}
}

// A child that says nothing and does not end must not hang the report.
func TestTrialsTimeOut(t *testing.T) {
	testutil.Require(t, testutil.UserNS)
	h, hangs := Local(), filepath.Join(t.TempDir(), "hangs")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(hangs); err == nil {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	tried := Trials{Command: []string{"hang", hangs}}.run(ctx, h, oneID(os.Getuid(), os.Getgid()))
	if !tried[trialUser].ok() {
		t.Errorf("user namespace: %+v", tried[trialUser])
	}
	for _, r := range append(checkMounts(h, tried), checkNetwork(h, tried)...) {
		if r.OK != Unknown || r.Found == "" {
			t.Errorf("got %+v", r)
		}
	}
}

func TestRunTrialRefusesNonsense(t *testing.T) {
	for _, arguments := range [][]string{nil, {"what"}, {"hold"}} {
		if code := RunTrial(arguments, strings.NewReader("\n"), &bytes.Buffer{}); code == 0 {
			t.Errorf("%v: 0", arguments)
		}
	}
}

// BenchmarkDecisions measures the cost of the decisions to a start.
func BenchmarkDecisions(b *testing.B) {
	for b.Loop() {
		h := Local()
		h.Memory()
		h.CPUs()
		h.Cgroup()
		h.IDMap(os.Getuid(), os.Getgid())
		h.StateDir(h.StateDirs())
		h.rootIsRootfs()
	}
}

func TestIPv6(t *testing.T) {
	const disabled, inherit = "/proc/sys/net/ipv6/conf/default/disable_ipv6", "/proc/sys/net/core/devconf_inherit_init_net"
	for name, c := range map[string]struct {
		files  map[string]string
		source string
		kernel bool
		global bool
	}{
		"none in the kernel":          {source: "2001:db8::1"},
		"no route":                    {files: map[string]string{disabled: "0"}, kernel: true},
		"a global address":            {files: map[string]string{disabled: "0"}, source: "2001:db8::1", kernel: true, global: true},
		"a private address":           {files: map[string]string{disabled: "0"}, source: "fd12:3456::1", kernel: true},
		"link-local":                  {files: map[string]string{disabled: "0"}, source: "fe80::1", kernel: true},
		"off, but not in namespaces":  {files: map[string]string{disabled: "1", inherit: "0"}, kernel: true},
		"off, and so in namespaces":   {files: map[string]string{disabled: "1", inherit: "1"}},
		"on, and namespaces inherit":  {files: map[string]string{disabled: "0", inherit: "1"}, kernel: true},
		"off, and inherited from all": {files: map[string]string{disabled: "1", inherit: "3"}},
	} {
		host := machine{files: c.files, source: c.source}.host()
		kernel, source := host.IPv6()
		if kernel != c.kernel || source.IsValid() != c.global {
			t.Errorf("%s: kernel %v, source %v", name, kernel, source)
		}
		without := checkIPv6(host, all(failed("nftables6:fib", unix.ENOENT)))
		if without.OK != No || c.global && !strings.Contains(without.Remedy.Admin, "nft_fib_ipv6") {
			t.Errorf("%s, without a module: %+v", name, without)
		}
		if r := checkIPv6(host, all()); (r.OK == Yes) != c.global || r.OK == No && (r.Cost == "" || r.Remedy.Admin == "") {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
