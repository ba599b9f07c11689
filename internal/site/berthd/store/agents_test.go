package store

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"berth.dev/berth/internal/site/berthd/etcd/etcdtest"
	"berth.dev/berth/internal/site/siteconf"
)

const (
	numAgents = 400
	agentPods = "10.128.0.0/16"
)

// etcdOf makes the test program run etcd. Its value holds the directory, and the
// addresses for clients and peers.
const etcdOf = "BERTH_TEST_ETCD"

// TestMain also makes this program the etcd of BenchmarkAgents, so that etcd's
// processor time can be measured separately. That etcd ends with its stdin.
func TestMain(m *testing.M) {
	if at := strings.Fields(os.Getenv(etcdOf)); len(at) == 3 {
		e, err := etcdtest.Start(at[0], url.URL{Scheme: "http", Host: at[1]}, url.URL{Scheme: "http", Host: at[2]})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		e.Close()
		return
	}
	os.Exit(m.Run())
}

// etcdProcess starts a separate etcd. spent returns its processor time.
func etcdProcess(t testing.TB) (endpoint string, spent func() time.Duration) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	client := etcdtest.Loopback(t)
	command := exec.Command(self)
	command.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s", etcdOf, t.TempDir(), client.Host, etcdtest.Loopback(t).Host))
	command.Stderr = os.Stderr
	life, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	ready, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		life.Close()
		if err := command.Wait(); err != nil {
			t.Error(err)
		}
	})
	if _, err := bufio.NewReader(ready).ReadString('\n'); err != nil {
		t.Fatal("etcd does not start")
	}
	return client.String(), func() time.Duration {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", command.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		// Start after the name, which may contain spaces. Fields 14 and 15 of proc(5)
		// are in hundredths of a second.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		var sum time.Duration
		for _, field := range fields[11:13] {
			ticks, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			sum += time.Duration(ticks) * 10 * time.Millisecond
		}
		return sum
	}
}

// agents returns the etcd clients of count berthds in one process. Each has its own
// connection to the etcd of the first one.
func agents(t testing.TB, first *Store, count int) []*Store {
	t.Helper()
	all := make([]*Store, count)
	for i := range all {
		all[i] = New(etcdtest.Dial(t, first.client.Endpoints()...), first.config)
		if _, err := all[i].Register(t.Context(), agentName(i), netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)})); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func agentName(i int) string { return fmt.Sprintf("node%03d", i) }

// learn returns when an agent has received an allocation of a user, as on a node that
// is not the job's first.
func learn(ctx context.Context, s *Store, owner string) (siteconf.Allocation, error) {
	known, err := s.List(ctx, owner)
	if err != nil {
		return siteconf.Allocation{}, err
	}
	for _, a := range known.Jobs {
		return a, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var received *siteconf.Allocation
	err = s.Watch(ctx, owner, known.Revision, func(c Change) {
		if received == nil && c.Allocation != nil {
			received = c.Allocation
			cancel()
		}
	})
	if received != nil {
		return *received, nil
	}
	return siteconf.Allocation{}, err
}

// together runs a function for each agent concurrently, and returns the total time.
func together(t testing.TB, count int, do func(i int) error) time.Duration {
	t.Helper()
	began := time.Now()
	var group sync.WaitGroup
	for i := range count {
		group.Go(func() {
			if err := do(i); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	return time.Since(began)
}

// BenchmarkAgents measures the load of 400 nodes on one etcd: for one job on all of
// them, and for a job of a different user on each at once. The processor time is
// etcd's, for each agent and job.
func BenchmarkAgents(b *testing.B) {
	b.Run("one job on 400 nodes", func(b *testing.B) {
		endpoint, spent := etcdProcess(b)
		all := agents(b, storeAt(b, etcdtest.Dial(b, endpoint), agentPods), numAgents)
		before := spent()
		nodes := make([]string, numAgents)
		for i := range nodes {
			nodes[i] = agentName(i)
		}
		var begin, end time.Duration
		job := uint32(0)
		for b.Loop() {
			job++
			begin += together(b, numAgents, func(i int) error {
				if i == 0 {
					_, err := all[0].Allocate(b.Context(), Request{Job: job, UID: 1000, User: "somebody", Name: "x", Nodes: nodes})
					return err
				}
				_, err := learn(b.Context(), all[i], "1000")
				return err
			})
			a, err := all[0].Allocate(b.Context(), Request{Job: job, UID: 1000, User: "somebody", Name: "x", Nodes: nodes})
			if err != nil {
				b.Fatal(err)
			}
			end += together(b, numAgents, func(i int) error { return all[i].Leave(b.Context(), a, agentName(i)) })
			if left, err := all[0].List(b.Context(), ""); err != nil || len(left.Jobs) > 0 {
				b.Fatalf("left: %d, %v", len(left.Jobs), err)
			}
		}
		b.ReportMetric(float64(begin.Milliseconds())/float64(b.N), "ms-begin")
		b.ReportMetric(float64(end.Milliseconds())/float64(b.N), "ms-end")
		b.ReportMetric((spent()-before).Seconds()*1000/float64(b.N)/numAgents, "etcd-ms/agent")
	})
	b.Run("a job on each of 400 nodes", func(b *testing.B) {
		endpoint, spent := etcdProcess(b)
		all := agents(b, storeAt(b, etcdtest.Dial(b, endpoint), agentPods), numAgents)
		before := spent()
		var begin, end time.Duration
		for b.Loop() {
			held := make([]siteconf.Allocation, numAgents)
			begin += together(b, numAgents, func(i int) (err error) {
				held[i], err = all[i].Allocate(b.Context(), Request{Job: uint32(i + 1), UID: uint32(1000 + i), User: "somebody", Name: "x", Nodes: []string{agentName(i)}})
				return err
			})
			end += together(b, numAgents, func(i int) error { return all[i].Leave(b.Context(), held[i], agentName(i)) })
			if left, err := all[0].List(b.Context(), ""); err != nil || len(left.Jobs) > 0 {
				b.Fatalf("left: %d, %v", len(left.Jobs), err)
			}
		}
		b.ReportMetric(float64(begin.Milliseconds())/float64(b.N), "ms-begin")
		b.ReportMetric(float64(end.Milliseconds())/float64(b.N), "ms-end")
		b.ReportMetric((spent()-before).Seconds()*1000/float64(b.N)/numAgents, "etcd-ms/agent")
	})
}
