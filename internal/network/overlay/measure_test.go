package overlay

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/testutil"
)

// BenchmarkBesideBare measures between two hosts that a veth joins, and between
// their nodes over the overlay and, if installed, over other networks for rootless
// containers, in turn: each iteration measures each once. Each host with all its programs has its own core. The metrics
// are medians; x is a path's figure divided by the bare one of its iteration. The
// veth carries super-packets of the bare hosts whole, which no network does,
// unless its offloads are off. With a rate it is slowed down, as a cable of
// 10 Gbit/s.
//
// CPU seconds include all programs of the pair and ksoftirqd.
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
				run  load
			}{
				{"tcp1", iperf()},
				{"tcp8", iperf("-P8")},
				{"tcp64", iperf("-P64")},
				// At a rate that all paths carry, because lost packets cost, too.
				{"udp", iperf("-u", "-b", udpRate(mtu), "-l", fmt.Sprint(mtu-200))},
				{"rtt", talk(answering, asking, 20000)},
				{"connect", talk(accepting, connecting, 5000)},
			} {
				name := fmt.Sprintf("mtu%d/%s/%s", mtu, link.name, load.name)
				for _, carrier := range []Carrier{carrierUDP, carrierTCP} {
					b.Run(name+"/"+string(carrier), func(b *testing.B) {
						l := newLab(b, labConfig{
							mtus: []int{mtu, mtu}, offloads: link.offloads, rate: link.rate, queues: 2, direct: true, processes: true,
							superBytes: MaxSuperPacket(mtu - wireLen - ipv4UDPOverhead),
							carrier:    carrier, streams: carrier == carrierTCP,
						})
						paths := []string{bare, over}
						if carrier == carrierUDP {
							paths = append(paths, l.startRivals(b)...)
						}
						beside(b, l, paths, load.run)
					})
				}
			}
		}
	}
}

// load measures something on a path.
type load func(b *testing.B, l *lab, path string) map[string]float64

// beside runs a load on all paths in turn and reports.
func beside(b *testing.B, l *lab, paths []string, run load) {
	all := map[string][]float64{}
	for b.Loop() {
		var first map[string]float64
		for _, path := range paths {
			values := run(b, l, path)
			if path == bare {
				first = values
			}
			for what, value := range values {
				all[path+"-"+what] = append(all[path+"-"+what], value)
				if path != bare {
					all["x-"+path+"-"+what] = append(all["x-"+path+"-"+what], value/first[what])
				}
			}
		}
	}
	for what, values := range all {
		slices.Sort(values)
		b.ReportMetric(values[len(values)/2], what)
	}
	b.ReportMetric(0, "ns/op")
}

func udpRate(mtu int) string {
	if mtu > 1500 {
		return "1500M"
	}
	return "400M"
}

// spent returns the CPU time of all programs of the lab so far.
func (l *lab) spent() time.Duration {
	var usage unix.Rusage
	unix.Getrusage(unix.RUSAGE_CHILDREN, &usage) // children that have ended
	total := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	for _, m := range l.members {
		for _, program := range m.programs {
			total += processTime(fmt.Sprintf("/proc/%d/stat", program.Pid))
		}
	}
	threads, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, comm := range threads {
		if name, _ := os.ReadFile(comm); bytes.HasPrefix(name, []byte("ksoftirqd/")) {
			total += processTime(filepath.Dir(comm) + "/stat")
		}
	}
	return total
}

// processTime returns the CPU time of a process so far, in ticks' resolution.
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
func iperf(args ...string) load {
	return func(b *testing.B, l *lab, path string) map[string]float64 {
		if _, err := exec.LookPath("iperf3"); err != nil {
			b.Skip("needs iperf3")
		}
		client, at := l.members[0].place(path), l.members[1].place(path)
		port := fmt.Sprint(at.listen.Port())
		before := l.spent()
		server := exec.CommandContext(b.Context(), "iperf3", "-s", "-1", "-p", port, "-B", at.listen.Addr().String())
		at.try(b, server.Start)
		testutil.Eventually(b, "iperf3 listens", func() bool {
			listens := false
			at.do(func() {
				// Its port is taken as soon as it listens.
				listener, err := net.Listen("tcp", at.listen.String())
				if listens = err != nil; !listens {
					listener.Close()
				}
			})
			return listens
		})
		var out bytes.Buffer
		run := exec.CommandContext(b.Context(), "iperf3", append([]string{"-J", "-t", "1", "-p", port, "-c", at.dial.Addr().String()}, args...)...)
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

// talk returns a load of many one-byte round trips over TCP.
func talk(serve, ask string, rounds int) load {
	return func(b *testing.B, l *lab, path string) map[string]float64 {
		return talkOnce(b, l, path, serve, ask, rounds)
	}
}

func talkOnce(b *testing.B, l *lab, path, serve, ask string, rounds int) map[string]float64 {
	client, at := l.members[0].place(path), l.members[1].place(path)
	server := l.members[1].role(serve, "ADDRESS="+at.listen.String())
	out, err := server.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	at.try(b, server.Start)
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		b.Fatalf("no server: %v", err)
	}
	run := l.members[0].role(ask, "ADDRESS="+at.dial.String(), fmt.Sprintf("ROUNDS=%d", rounds))
	var printed bytes.Buffer
	run.Stdout, run.Stderr = &printed, os.Stderr
	client.try(b, run.Start)
	if err := run.Wait(); err != nil {
		b.Fatalf("ask over %s: %v", path, err)
	}
	server.Wait()
	var times roundTrips
	if err := json.Unmarshal(printed.Bytes(), &times); err != nil {
		b.Fatal(err)
	}
	return map[string]float64{"p50-us": times.P50, "p99-us": times.P99}
}
