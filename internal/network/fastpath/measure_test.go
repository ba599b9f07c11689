package fastpath

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkBesideBare compares two hosts joined by a veth with switched connections of
// pods on them, in turn: each iteration is a pair (-benchtime=3x). Each host, with all
// its programs, has one core. The metrics are medians of the pairs; x is switched divided
// by bare. share is the part of the connections that was switched: below 0.99, the
// benchmark has measured the overlay.
//
// CPU seconds count the whole machine, which must be quiet. For each connection they count
// only the two Switches.
func BenchmarkBesideBare(b *testing.B) {
	for _, load := range []struct {
		name string
		run  func(b *testing.B, client, server place) map[string]float64
	}{
		{"tcp1", iperf()},
		{"tcp8", iperf("-P8")},
		{"tcp1reverse", iperf("-R")},
		{"rtt", roundTrips},
		{"cycles1", cycles(1)},
		{"cycles8", cycles(8)},
	} {
		for _, mtu := range []int{1500, 9000} {
			if mtu != 1500 && !strings.HasPrefix(load.name, "tcp") {
				continue
			}
			b.Run(fmt.Sprintf("%s/mtu=%d", load.name, mtu), func(b *testing.B) {
				l := newLab(b, labConfig{pinned: true, mtu: mtu})
				clientPod, serverPod := l.hosts[0].addPod(10), l.hosts[1].addPod(20)
				// The first connection makes the others ready.
				serving := serverPod.serve("serve", "4999")
				clientPod.run("ask", serverPod.at(4999))
				serving.wait()
				all := map[string][]float64{}
				for b.Loop() {
					bare := load.run(b, l.hosts[0], l.hosts[1])
					before, connections := l.switchTime(), l.hosts[0].counters()[countNames[countConnected]]
					switched := load.run(b, clientPod, serverPod)
					connections = l.hosts[0].counters()[countNames[countConnected]] - connections
					all["switch-CPU-us"] = append(all["switch-CPU-us"], (l.switchTime()-before).Seconds()*1e6/float64(connections))
					for what, value := range bare {
						all["bare-"+what] = append(all["bare-"+what], value)
						all["fast-"+what] = append(all["fast-"+what], switched[what])
						all["x-"+what] = append(all["x-"+what], switched[what]/value)
					}
				}
				for what, values := range all {
					slices.Sort(values)
					b.ReportMetric(values[len(values)/2], what)
				}
				total, connected := 0.0, 0.0
				for what, n := range l.hosts[0].counters() {
					if what == countNames[countConnected] {
						connected = float64(n)
					}
					if what == countNames[countConnected] || strings.HasPrefix(what, "overlay") {
						total += float64(n)
					}
				}
				b.ReportMetric(connected/total, "share")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// switchTime returns the CPU time of both hosts' Switches.
func (l *lab) switchTime() (total time.Duration) {
	for _, h := range l.hosts {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.process.Process.Pid))
		if err != nil {
			l.Fatal(err)
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		for _, field := range fields[11:13] { // utime, stime
			ticks, _ := strconv.Atoi(field)
			total += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return total
}

// place is a host or a pod.
type place interface {
	begin(b *testing.B, args ...string) (line func() string, wait func() string)
	at(port int) string
}

func (h *host) at(port int) string { return netip.AddrPortFrom(h.address, uint16(port)).String() }

func (p *labPod) begin(_ *testing.B, args ...string) (line, wait func() string) {
	p.host.lab.Helper()
	started := p.start(args[0], args[1:]...)
	return started.line, started.wait
}

func (h *host) begin(b *testing.B, args ...string) (line, wait func() string) {
	h.lab.Helper()
	command := role(roleProgram, "ARGS="+strings.Join(args, "\x1f"))
	pipe, err := command.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	out := bufio.NewReader(pipe)
	h.ns.try(b, command.Start)
	b.Cleanup(func() { // where the benchmark has failed
		command.Process.Kill()
		command.Wait()
	})
	line = func() string {
		text, err := out.ReadString('\n')
		if err != nil {
			b.Fatalf("%v: %v", args, err)
		}
		return strings.TrimSpace(text)
	}
	return line, func() string {
		rest := new(bytes.Buffer)
		rest.ReadFrom(out)
		if err := command.Wait(); err != nil {
			b.Fatalf("%v: %v", args, err)
		}
		return strings.TrimSpace(rest.String())
	}
}

// busy returns the CPU time of the whole machine.
func busy(b *testing.B) time.Duration {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		b.Fatal(err)
	}
	total := 0
	for i, field := range strings.Fields(string(stat[:bytes.IndexByte(stat, '\n')]))[1:8] {
		if ticks, _ := strconv.Atoi(field); i != 3 && i != 4 { // idle, iowait
			total += ticks
		}
	}
	return time.Duration(total) * 10 * time.Millisecond
}

func iperf(args ...string) func(b *testing.B, client, server place) map[string]float64 {
	return func(b *testing.B, client, server place) map[string]float64 {
		if _, err := exec.LookPath("iperf3"); err != nil {
			b.Skip("needs iperf3")
		}
		// It prints that it listens, once it does.
		line, waitServer := server.begin(b, "exec", "iperf3", "-s", "-1", "--forceflush")
		for !strings.Contains(line(), "listening") {
		}
		before := busy(b)
		_, wait := client.begin(b, append([]string{"exec", "iperf3", "-J", "-t", "3", "-c", netip.MustParseAddrPort(server.at(1)).Addr().String()}, args...)...)
		text := wait()
		spent := busy(b) - before
		waitServer()
		var report struct {
			End struct {
				Received struct {
					Bytes   float64 `json:"bytes"`
					Seconds float64 `json:"seconds"`
				} `json:"sum_received"`
			} `json:"end"`
		}
		if err := json.Unmarshal([]byte(text), &report); err != nil {
			b.Fatalf("iperf3: %v: %s", err, text)
		}
		moved, seconds := report.End.Received.Bytes, report.End.Received.Seconds
		return map[string]float64{"Gbit/s": moved * 8 / seconds / 1e9, "CPU-s/GB": spent.Seconds() / (moved / 1e9)}
	}
}

func roundTrips(b *testing.B, client, server place) map[string]float64 {
	line, waitServer := server.begin(b, "answer", "5000", "1", "1")
	line()
	_, wait := client.begin(b, "roundtrips", server.at(5000), "20000")
	var times map[string]float64
	if err := json.Unmarshal([]byte(wait()), &times); err != nil {
		b.Fatal(err)
	}
	waitServer()
	return times
}

// cycles returns a measurement of connections by the given number of threads. On each
// connection a byte is sent, comes back, and the connection ends.
func cycles(threads int) func(b *testing.B, client, server place) map[string]float64 {
	return func(b *testing.B, client, server place) map[string]float64 {
		// A host has 28,000 ports for connections to one port, each taken for a
		// minute; searching takes long when few are free.
		const each = 2000
		n := each / threads
		line, waitServer := server.begin(b, "answer", "5000", fmt.Sprint(threads), fmt.Sprint(n))
		line()
		before, start := busy(b), time.Now()
		_, wait := client.begin(b, "cycles", server.at(5000), fmt.Sprint(threads), fmt.Sprint(n))
		wait()
		took, spent := time.Since(start), busy(b)-before
		waitServer()
		total := float64(n * threads)
		return map[string]float64{"per-s": total / took.Seconds(), "CPU-us": spent.Seconds() * 1e6 / total}
	}
}

var loads = map[string]func([]string) error{
	"exec": execProgram, "answer": answerBytes, "roundtrips": askRoundTrips, "cycles": connectCycles,
}

func execProgram(args []string) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	return unix.Exec(path, args, os.Environ())
}

// inThreads runs f on n threads at the same time.
func inThreads(n int, f func() error) error {
	done := make(chan error)
	for range n {
		go func() {
			runtime.LockOSThread()
			done <- f()
		}()
	}
	var err error
	for range n {
		err = errors.Join(err, <-done)
	}
	return err
}

// answerBytes PORT THREADS N: each thread serves N connections, all from one
// listener.
func answerBytes(args []string) error {
	threads, err1 := strconv.Atoi(args[1])
	n, err2 := strconv.Atoi(args[2])
	listener, err3 := newSocket(unix.AF_INET, 0)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(listener, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(listener, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	if err := unix.Bind(listener, sockaddr("0.0.0.0:"+args[0], unix.AF_INET)); err != nil {
		return err
	}
	if err := unix.Listen(listener, 1024); err != nil {
		return err
	}
	fmt.Println("ready")
	return inThreads(threads, func() error {
		b := make([]byte, 1)
		for range n {
			fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
			if err != nil {
				return err
			}
			for {
				got, err := unix.Read(fd, b)
				if err != nil {
					return err
				}
				if got == 0 {
					break
				}
				if _, err := unix.Write(fd, b); err != nil {
					return err
				}
			}
			unix.Close(fd)
		}
		return nil
	})
}

func connectNoDelay(address string) (int, error) {
	fd, err := newSocket(unix.AF_INET, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return -1, err
	}
	return fd, unix.Connect(fd, sockaddr(address, unix.AF_INET))
}

func byteAndBack(fd int, b []byte) error {
	if _, err := unix.Write(fd, b); err != nil {
		return err
	}
	n, err := unix.Read(fd, b)
	if err == nil && n == 0 {
		err = unix.ECONNRESET
	}
	return err
}

func askRoundTrips(args []string) error {
	n, err1 := strconv.Atoi(args[1])
	fd, err2 := connectNoDelay(args[0])
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	var times []time.Duration
	b := make([]byte, 1)
	for range n {
		start := time.Now()
		if err := byteAndBack(fd, b); err != nil {
			return err
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	at := func(percent int) float64 { return float64(times[n*percent/100].Nanoseconds()) / 1000 }
	return json.NewEncoder(os.Stdout).Encode(map[string]float64{"p50-us": at(50), "p99-us": at(99)})
}

func connectCycles(args []string) error {
	threads, err1 := strconv.Atoi(args[1])
	n, err2 := strconv.Atoi(args[2])
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	return inThreads(threads, func() error {
		b := make([]byte, 1)
		for range n {
			fd, err := connectNoDelay(args[0])
			if err != nil {
				return err
			}
			if err := byteAndBack(fd, b); err != nil {
				return err
			}
			unix.Close(fd)
		}
		return nil
	})
}
