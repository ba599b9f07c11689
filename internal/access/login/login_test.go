package login

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/access/jobend"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/base/pki"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/testutil"
)

// TestMain lets the test program also run as the process that keeps a tunnel, and
// as the far end.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case TunnelServerArg:
			os.Exit(TunnelServer())
		case jobend.Arg:
			os.Exit(jobend.Main())
		}
	}
	os.Exit(m.Run())
}

// site is a host with a fake srun and squeue. Slurm has one job of this user,
// number 12, which runs on the same host.
type site struct {
	*Place
	// dir contains the fakes, and a file named calls with a line for each call.
	dir string
	run *rundir.Dir
}

const fakeSrun = `#!/bin/sh
echo srun >>"$FAKES/calls"
for last; do :; done
case "$*" in
*--jobid=12\ *) SLURMD_NODENAME=n1 exec "$BERTH_REMOTE_PATH" "$last" ;;
esac
echo "srun: error: Unable to confirm allocation for job" >&2
exit 1
`

const fakeSqueue = `#!/bin/sh
echo squeue >>"$FAKES/calls"
case "$*" in
*--jobs=12\ *|*--user=*) cat "$FAKES/jobs" ;;
*--jobs=13\ *) echo "13|13|PENDING|$UID_NOW|1||0:00|1:00|Resources|wait" ;;
*--jobs=14\ *) echo "14|14|PENDING|$UID_NOW|1||0:00|1:00|JobHeldUser|wait" ;;
*--jobs=15\ *) echo "15|15|RUNNING|4242|1|n1|0:00|1:00|None|others" ;;
*--jobs=16\ *) echo "16|16|COMPLETED|$UID_NOW|1|n1|0:00|1:00|None|done" ;;
*) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1 ;;
esac
`

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{dir: t.TempDir()}
	s.write(t, "srun", fakeSrun)
	s.write(t, "squeue", fakeSqueue)
	s.write(t, "jobs", fmt.Sprintf("12|12|RUNNING|%d|1|n1|1:00|9:00|None|work\n", os.Getuid()))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	memory := t.TempDir()
	for name, value := range map[string]string{
		"PATH": s.dir + ":/usr/bin:/bin", "FAKES": s.dir, "UID_NOW": fmt.Sprint(os.Getuid()),
		"XDG_RUNTIME_DIR": memory, EnvRemotePath: self, EnvJob: "", "SLURM_JOB_ID": "",
	} {
		t.Setenv(name, value)
	}
	s.startCluster(t, memory)
	if s.Place, err = NewPlace(os.Getenv); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.run.Lock.Close() // a far end without a near end ends with its cluster
		eventually(t, "all of the tunnels are gone", func() bool { return len(s.open()) == 0 })
	})
	return s
}

func (s *site) write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

// calls counts the calls of a fake command.
func (s *site) calls(t *testing.T, name string) int {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(s.dir, "calls"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Count("\n"+string(content), "\n"+name)
}

// startCluster makes the directory of a run, and starts a substitute for its API
// server.
func (s *site) startCluster(t *testing.T, memory string) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/nodes":
			_, _ = io.WriteString(w, `{"items":[{"metadata":{"name":"n1"},"status":{"conditions":[{"type":"Ready","status":"True"}]}},`+
				`{"metadata":{"name":"slurm-n1-main","labels":{"type":"virtual-kubelet"}},"status":{"conditions":[{"type":"Ready","status":"True"}]}}]}`)
		case "/api/v1/pods":
			_, _ = io.WriteString(w, `{"items":[{"status":{"phase":"Running"}},{"status":{"phase":"Pending","containerStatuses":[{"state":{"waiting":{"reason":"ImagePullBackOff"}}}]}},`+
				`{"status":{"phase":"Succeeded"}},{"status":{"phase":"Failed","containerStatuses":[{"state":{"waiting":{"reason":"ContainerCreating"}}}]}}]}`)
		case "/api/v1/namespaces/kube-system/configmaps":
			_, _ = io.WriteString(w, `{"items":[{"metadata":{"name":"berth-elastic","labels":{"slurm.berth.dev/pilot-of":"12"}},"data":{"seats":"8"}},`+
				`{"metadata":{"name":"pilot-12-a"},"data":{"request":"{\"nodes\":2}","job":"14","state":"PENDING","reason":"Resources"}},`+
				`{"metadata":{"name":"pilot-12-b"},"data":{"request":"{\"nodes\":1}","job":"13","state":"RUNNING","hosts":"n2"}},`+
				`{"metadata":{"name":"pilot-12-c"},"data":{"request":"{\"nodes\":1}"}}]}`)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	var err error
	if s.run, err = rundir.Create(memory, "job-12-0-99"+rundir.PrivateSuffix); err != nil {
		t.Fatal(err)
	}
	authority, err := pki.NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	client, err := authority.Issue(pki.Identity{CommonName: "user"})
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(s.dir, "key")
	s.write(t, "key", string(client.Key))
	trusted := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	kubeconfig := pki.KubeconfigWithKeyFile("berth", server.URL, trusted, client.Cert, key)
	if err := os.WriteFile(filepath.Join(s.run.Path, rundir.KubeconfigFile), kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (s *site) connect(t *testing.T) *Session {
	t.Helper()
	session, err := s.Connect(t.Context(), Target{Job: "12"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(session.Close)
	return session
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Errorf("not within 20 s: %s", what)
			return
		}
		<-time.After(10 * time.Millisecond)
	}
}

func TestManyCommandsShareOneStep(t *testing.T) {
	s := newSite(t)
	var commands sync.WaitGroup
	for range 16 {
		commands.Go(func() {
			session, err := s.Connect(t.Context(), Target{Job: "12"})
			if err != nil {
				t.Error(err)
				return
			}
			defer session.Close()
			summary, err := session.summarise(t.Context())
			if err != nil || len(summary.Nodes) != 1 || !summary.Nodes[0].Ready || summary.Pods["Running"] != 1 || LivingPods(summary.Pods) != 2 ||
				len(summary.Waiting) != 1 || summary.Waiting["ImagePullBackOff"] != 1 || summary.Seats != 8 || summary.FreeSeats != 4 ||
				!slices.Equal(summary.Pilots, []Pilot{{Job: "13", State: "RUNNING", Hosts: "n2", Nodes: 1}, {Job: "14", State: "PENDING", Reason: "Resources", Nodes: 2}}) {
				t.Errorf("%+v, %v", summary, err)
			}
			if err := session.Check(); err != nil {
				t.Error(err)
			}
		})
	}
	commands.Wait()
	if calls := s.calls(t, "srun"); calls != 1 {
		t.Errorf("%d steps", calls)
	}
	if calls := s.calls(t, "squeue"); calls != 0 {
		t.Errorf("Slurm was asked %d times for jobs", calls)
	}
}

func TestManyCommandsWithoutJobQuerySlurmOnce(t *testing.T) {
	s := newSite(t)
	session := s.connect(t)
	for range 20 {
		target, err := s.Resolve(t.Context(), "")
		if err != nil || target != session.Target {
			t.Fatalf("%v, %v", target, err)
		}
	}
	if calls := s.calls(t, "squeue"); calls != 1 {
		t.Errorf("Slurm was asked %d times", calls)
	}
}

func TestTunnelIsPrivate(t *testing.T) {
	s := newSite(t)
	session := s.connect(t)
	content, err := os.ReadFile(session.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(content), "key-data") {
		t.Error("the key is in the kubeconfig")
	}
	dir := filepath.Dir(session.Kubeconfig)
	for path, want := range map[string]os.FileMode{dir: 0o700, session.Kubeconfig: 0o600, filepath.Join(dir, socketFile): 0o600} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
}

// TestForeignTunnelsAreNotUsed: in a folder that anyone may write to, another
// user may have created the files of a tunnel.
func TestForeignTunnelsAreNotUsed(t *testing.T) {
	testutil.Require(t, testutil.Root)
	s := newSite(t)
	home := rundir.Home(s.base)
	if err := os.RemoveAll(home); err != nil {
		t.Fatal(err)
	}
	theirs := filepath.Join(home, dirName(Target{Job: "12"}))
	if err := os.MkdirAll(theirs, 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(theirs, socketFile))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := os.Chown(home, 4242, 4242); err != nil {
		t.Fatal(err)
	}
	if conn, err := s.dial(t.Context(), Target{Job: "12"}); err == nil {
		conn.Close()
		t.Error("somebody else's socket is used")
	}
}

func TestUnusedTunnelCloses(t *testing.T) {
	s := newSite(t)
	s.idle = 100 * time.Millisecond
	session := s.connect(t)
	if _, err := session.summarise(t.Context()); err != nil {
		t.Fatal(err)
	}
	session.Close()
	eventually(t, "the tunnel closes", func() bool { return len(s.open()) == 0 })
	if session = s.connect(t); session.Check() != nil {
		t.Error("the next one is lost")
	}
}

func TestCommandsAreNotifiedOfClusterEnd(t *testing.T) {
	s := newSite(t)
	session := s.connect(t)
	s.run.Lock.Close()
	eventually(t, "the loss is noticed", func() bool {
		select {
		case <-session.Lost():
			return true
		default:
			return false
		}
	})
	err := session.Check()
	if err == nil || !strings.Contains(err.Error(), "the cluster has ended") {
		t.Errorf("%v", err)
	}
	_, err = s.Connect(t.Context(), Target{Job: "12"})
	wants(t, err, codeUnavailable, "no cluster of job 12 on node n1")
}

func TestCommandsAreNotifiedOfJobEnd(t *testing.T) {
	s := newSite(t)
	session := s.connect(t)
	if err := session.CheckJob(); err != nil {
		t.Fatal(err)
	}
	s.write(t, "jobs", fmt.Sprintf("12|12|COMPLETING|%d|1|n1|1:00|9:00|None|work\n", os.Getuid()))
	if err := session.Check(); err != nil {
		t.Error(err)
	}
	wants(t, session.CheckJob(), codeUnavailable, "job 12 is ending")
}

func TestKilledTunnelServerIsReplaced(t *testing.T) {
	s := newSite(t)
	session := s.connect(t)
	if err := unix.Kill(tunnelServerOf(t, session), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wants(t, session.Check(), codeUnavailable, "was killed")
	if err := s.connect(t).Check(); err != nil {
		t.Error(err)
	}
}

func TestCommandReopensLostTunnel(t *testing.T) {
	s := newSite(t)
	session := s.connect(t)
	steps, err := linux.Descendants(tunnelServerOf(t, session))
	if err != nil || len(steps) == 0 {
		t.Fatal(err, steps)
	}
	for _, pid := range steps {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 { // both while the tunnel's process ends and afterwards
		if err := s.connect(t).Check(); err != nil {
			t.Fatal(err)
		}
	}
	wants(t, session.Check(), codeUnavailable, "was lost")
}

func TestSrunMessagesAboutForeignConnectionsAreOmitted(t *testing.T) {
	var said tail
	for _, line := range []string{
		"srun: error: eio_message_socket_accept: slurm_receive_msg[127.0.0.1:39310]: Insane message length",
		"srun: error: failed reading io init message", "srun: error: n1: task 0: Killed", "",
	} {
		fmt.Fprintln(&said, line)
	}
	if got, want := said.text(), "srun: error: n1: task 0: Killed"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// tunnelServerOf returns the process ID in the path of the key.
func tunnelServerOf(t *testing.T, session *Session) (pid int) {
	t.Helper()
	content, err := os.ReadFile(session.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := pki.ReadKubeconfig(content)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(client.KeyFile, "/proc/%d/", &pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

func wants(t *testing.T, err error, code int, text string) {
	t.Helper()
	var said *Problem
	if !errors.As(err, &said) || said.Code != code || !strings.Contains(said.Text, text) {
		t.Errorf("%v, want code %d and %q", err, code, text)
	}
}

func TestProblemsAreReported(t *testing.T) {
	s := newSite(t)
	for job, want := range map[string]struct {
		code int
		text string
	}{
		"13": {codeUnavailable, "has not started (PENDING, Resources)"},
		"14": {codeUnavailable, "scontrol release 14"},
		"15": {codeNoJob, "is not yours"},
		"16": {codeUnavailable, "has ended (COMPLETED)"},
		"17": {codeNoJob, "there is no job 17"},
	} {
		_, err := s.Connect(t.Context(), Target{Job: job})
		wants(t, err, want.code, want.text)
	}
	_, err := s.Connect(t.Context(), Target{Job: "12", Step: "7"})
	wants(t, err, codeUnavailable, "no cluster of job 12")
	_, err = s.Resolve(t.Context(), "many")
	wants(t, err, codeUsage, "is not a job")
	s.write(t, "jobs", "")
	_, err = s.Resolve(t.Context(), "")
	wants(t, err, codeNoJob, "you have no job")
	t.Setenv("PATH", "/nowhere")
	_, err = s.Connect(t.Context(), Target{Job: "12"})
	wants(t, err, codeUnavailable, "PATH")
}

func TestTwoClustersInJobAreAmbiguous(t *testing.T) {
	s := newSite(t)
	other, err := rundir.Create(filepath.Dir(filepath.Dir(s.run.Path)), "job-12-4-100"+rundir.PrivateSuffix)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Lock.Close()
	if err := os.WriteFile(filepath.Join(other.Path, rundir.KubeconfigFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = s.Connect(t.Context(), Target{Job: "12"})
	wants(t, err, codeUsage, "12.")
	session, err := s.Connect(t.Context(), Target{Job: "12", Step: "0"})
	if err != nil {
		t.Fatal(err)
	}
	session.Close()
}

func TestJobFollowsFromPlace(t *testing.T) {
	s := newSite(t)
	for _, c := range []struct {
		job, slurm, name string
		want             Target
	}{
		{"", "", "", Target{Job: "12"}},
		{"", "21", "", Target{Job: "21"}},
		{"20.3", "21", "", Target{Job: "20", Step: "3"}},
		{"20", "21", "22.batch", Target{Job: "22", Step: "batch"}},
	} {
		t.Setenv(EnvJob, c.job)
		t.Setenv("SLURM_JOB_ID", c.slurm)
		target, err := s.Resolve(context.Background(), c.name)
		if err != nil || target != c.want {
			t.Errorf("%+v: %v, %v", c, target, err)
		}
	}
	s.write(t, "jobs", fmt.Sprintf("31|12_3|RUNNING|%d|1|n1|1:00|9:00|None|work\n", os.Getuid()))
	if target, err := s.Resolve(t.Context(), "12_3"); err != nil || target.Job != "31" {
		t.Errorf("%v, %v", target, err)
	}
}
