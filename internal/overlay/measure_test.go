package overlay

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkBesideBare measures between two hosts that a veth joins, and between
// their nodes over the overlay, in turn: each iteration is a pair (use
// -benchtime=10x). Each host with all its programs has a core of its own. The
// metrics are medians of the pairs; of the ratio, the overlay's figure divided
// by the bare one, also the bounds of the median's 95 % interval. The veth
// carries super-packets of the bare hosts whole, which no network does, unless
// its offloads are off. With a rate it is slowed down, as a cable of 10 Gbit/s.
//
// CPU seconds are those of all programs of the pair and of ksoftirqd.
func BenchmarkBesideBare(b *testing.B) {
	for _, mtu := range []int{1500, 9000} {
		for _, link := range []struct {
			name     string
			offloads bool
			rate     uint64 // bytes per second; 0: as fast as it can
		}{
			{"offloads=true", true, 0},
			{"offloads=false", false, 0},
			{"rate=10G", true, 10e9 / 8},
		} {
			for _, load := range []struct {
				name string
				run  func(*testing.B, *lab, string) map[string]float64
			}{
				{"tcp1", iperf()},
				{"tcp8", iperf("-P8")},
				{"tcp64", iperf("-P64")},
				// At a rate that both paths carry: what is lost costs too.
				{"udp", iperf("-u", "-b", udpRate(mtu), "-l", fmt.Sprint(mtu-200))},
				{"rtt", talk(answering, asking, 20000)},
				{"connect", talk(accepting, connecting, 5000)},
			} {
				name := fmt.Sprintf("mtu%d/%s/%s", mtu, link.name, load.name)
				for _, carrier := range []Carrier{CarrierUDP, CarrierTCP} {
					b.Run(name+"/"+string(carrier), func(b *testing.B) {
						l := newLab(b, labConfig{
							mtus: []int{mtu, mtu}, offloads: link.offloads, rate: link.rate, queues: 2, direct: true, processes: true,
							superBytes: MaxSuperPacket(mtu - wireLen - ipv4UDPOverhead),
							carrier:    carrier, streams: carrier == CarrierTCP,
						})
						beside(b, l, load.run)
					})
				}
			}
		}
	}
}

// beside runs a load on both paths in turn and reports.
func beside(b *testing.B, l *lab, run func(*testing.B, *lab, string) map[string]float64) {
	all := map[string][]float64{}
	for b.Loop() {
		bare, over := run(b, l, "bare"), run(b, l, "overlay")
		for what, value := range bare {
			all["bare-"+what] = append(all["bare-"+what], value)
			all["over-"+what] = append(all["over-"+what], over[what])
			all["x-"+what] = append(all["x-"+what], over[what]/value)
		}
	}
	for what, values := range all {
		slices.Sort(values)
		b.ReportMetric(values[len(values)/2], what)
		if low, high, ok := medianBounds(len(values)); ok && strings.HasPrefix(what, "x-") {
			b.ReportMetric(values[low], what+"-low")
			b.ReportMetric(values[high], what+"-high")
		}
	}
	b.ReportMetric(0, "ns/op")
}

// medianBounds are the ranks of n sorted values between which the median lies
// with at least 95 %: the binomial distribution with one half. There are none
// for fewer than six.
func medianBounds(n int) (low, high int, ok bool) {
	below := 1.0
	for range n {
		below /= 2
	}
	for term, sum := below, below; sum <= 0.025; low++ {
		term *= float64(n-low) / float64(low+1)
		sum += term
		ok = true
	}
	low = max(0, low-1)
	return low, n - 1 - low, ok
}

func udpRate(mtu int) string {
	if mtu > 1500 {
		return "1500M"
	}
	return "400M"
}

func (m *member) place(path string) (*namespace, netip.Addr) {
	if path == "bare" {
		return m.host, m.hostAddr
	}
	return m.node, m.nodeAddr
}

// spent is the processor time of all programs of the lab so far.
func (l *lab) spent() time.Duration {
	var usage unix.Rusage
	unix.Getrusage(unix.RUSAGE_CHILDREN, &usage) // those that have ended
	total := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	for _, m := range l.members {
		total += processTime(fmt.Sprintf("/proc/%d/stat", m.process.Pid))
	}
	threads, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, comm := range threads {
		if name, _ := os.ReadFile(comm); bytes.HasPrefix(name, []byte("ksoftirqd/")) {
			total += processTime(filepath.Dir(comm) + "/stat")
		}
	}
	return total
}

// processTime is that of a process so far, with the resolution of a tick.
func processTime(stat string) time.Duration {
	data, _ := os.ReadFile(stat)
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// iperf returns a load of iperf3 with the arguments.
func iperf(args ...string) func(*testing.B, *lab, string) map[string]float64 {
	return func(b *testing.B, l *lab, path string) map[string]float64 {
		if _, err := exec.LookPath("iperf3"); err != nil {
			b.Skip("needs iperf3")
		}
		client, _ := l.members[0].place(path)
		at, address := l.members[1].place(path)
		before := l.spent()
		server := exec.CommandContext(b.Context(), "iperf3", "-s", "-1", "-B", address.String())
		at.try(b, server.Start)
		eventually(b, "iperf3 listens", func() bool {
			listens := false
			at.do(func() {
				// Its port is taken as soon as it listens.
				listener, err := net.Listen("tcp", netip.AddrPortFrom(address, 5201).String())
				if listens = err != nil; !listens {
					listener.Close()
				}
			})
			return listens
		})
		var out bytes.Buffer
		run := exec.CommandContext(b.Context(), "iperf3", append([]string{"-J", "-t", "2", "-c", address.String()}, args...)...)
		run.Stdout = &out
		client.try(b, run.Start)
		if err := run.Wait(); err != nil {
			b.Fatalf("iperf3: %v: %s", err, out.String())
		}
		server.Wait()
		spent := l.spent() - before
		var report struct {
			End struct {
				Received struct {
					Bytes   float64 `json:"bytes"`
					Seconds float64 `json:"seconds"`
				} `json:"sum_received"`
			} `json:"end"`
		}
		if err := json.Unmarshal(out.Bytes(), &report); err != nil {
			b.Fatal(err)
		}
		moved, seconds := report.End.Received.Bytes, report.End.Received.Seconds
		return map[string]float64{"Gbit/s": moved * 8 / seconds / 1e9, "CPU-s/GB": spent.Seconds() / (moved / 1e9)}
	}
}

// talk returns a load of one byte there and back over TCP, many times.
func talk(serve, ask string, rounds int) func(*testing.B, *lab, string) map[string]float64 {
	return func(b *testing.B, l *lab, path string) map[string]float64 {
		return talkOnce(b, l, path, serve, ask, rounds)
	}
}

func talkOnce(b *testing.B, l *lab, path, serve, ask string, rounds int) map[string]float64 {
	client, _ := l.members[0].place(path)
	at, address := l.members[1].place(path)
	server := l.members[1].role(serve, "ADDRESS="+netip.AddrPortFrom(address, 0).String())
	out, err := server.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	at.try(b, server.Start)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatalf("no server: %v", err)
	}
	run := l.members[0].role(ask, "ADDRESS="+strings.TrimSpace(line), fmt.Sprintf("ROUNDS=%d", rounds))
	var printed bytes.Buffer
	run.Stdout = &printed
	client.try(b, run.Start)
	if err := run.Wait(); err != nil {
		b.Fatalf("ask: %v", err)
	}
	server.Wait()
	var times roundTrips
	if err := json.Unmarshal(printed.Bytes(), &times); err != nil {
		b.Fatal(err)
	}
	return map[string]float64{"p50-us": times.P50, "p99-us": times.P99}
}
