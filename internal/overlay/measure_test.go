package overlay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// cpu is the processor time of this process, or of its children, so far.
func cpu(who int) time.Duration {
	var usage unix.Rusage
	unix.Getrusage(who, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkIperf measures between two hosts, joined by a veth, and between
// their nodes over the overlay. The metrics are gigabits per second, and
// processor seconds per gigabyte of all processes together. The veth carries
// super-packets of the hosts whole, which no network does.
func BenchmarkIperf(b *testing.B) {
	if _, err := exec.LookPath("iperf3"); err != nil {
		b.Skip("needs iperf3")
	}
	for _, mtu := range []int{1500, 9000} {
		for _, offloads := range []bool{true, false} {
			for _, load := range []struct {
				name string
				args []string
			}{
				{"tcp1", nil},
				{"tcp8", []string{"-P8"}},
				// At a rate that both paths carry: what is lost costs too.
				{"udp", []string{"-u", "-b", udpRate(mtu), "-l", fmt.Sprint(mtu - 200)}},
			} {
				for _, path := range []string{"bare", "overlay"} {
					b.Run(fmt.Sprintf("mtu%d/offloads=%v/%s/%s", mtu, offloads, load.name, path), func(b *testing.B) {
						inner := MaxSuperPacket(mtu - wireLen - ipv4UDPOverhead)
						l := newLab(b, labConfig{mtus: []int{mtu, mtu}, offloads: offloads, queues: 2, direct: true, superBytes: inner})
						iperf(b, l, path, load.args)
					})
				}
			}
		}
	}
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

func iperf(b *testing.B, l *lab, path string, args []string) {
	client, _ := l.members[0].place(path)
	at, address := l.members[1].place(path)
	var bytesMoved, seconds float64
	before := cpu(unix.RUSAGE_SELF) + cpu(unix.RUSAGE_CHILDREN)
	for b.Loop() {
		var out bytes.Buffer
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
		run := exec.CommandContext(b.Context(), "iperf3", append([]string{"-J", "-t", "2", "-c", address.String()}, args...)...)
		run.Stdout = &out
		client.try(b, run.Start)
		if err := run.Wait(); err != nil {
			b.Fatalf("iperf3: %v: %s", err, out.String())
		}
		server.Wait()
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
		bytesMoved += report.End.Received.Bytes
		seconds += report.End.Received.Seconds
	}
	spent := cpu(unix.RUSAGE_SELF) + cpu(unix.RUSAGE_CHILDREN) - before
	b.ReportMetric(bytesMoved*8/seconds/1e9, "Gbit/s")
	b.ReportMetric(spent.Seconds()/(bytesMoved/1e9), "CPU-s/GB")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkRoundTrip measures one byte there and back over TCP.
func BenchmarkRoundTrip(b *testing.B) {
	for _, path := range []string{"bare", "overlay"} {
		b.Run(path, func(b *testing.B) {
			l := newLab(b, labConfig{mtus: []int{1500, 1500}, offloads: true, direct: true})
			client, _ := l.members[0].place(path)
			at, address := l.members[1].place(path)
			var listener net.Listener
			at.try(b, func() (err error) {
				listener, err = net.Listen("tcp", netip.AddrPortFrom(address, 0).String())
				return err
			})
			defer listener.Close()
			go func() {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				for one := make([]byte, 1); ; {
					if _, err := conn.Read(one); err != nil {
						return
					}
					conn.Write(one)
				}
			}()
			var conn net.Conn
			client.try(b, func() (err error) {
				conn, err = net.Dial("tcp", listener.Addr().String())
				return err
			})
			defer conn.Close()
			var times []time.Duration
			one := make([]byte, 1)
			for b.Loop() {
				start := time.Now()
				conn.Write(one)
				if _, err := conn.Read(one); err != nil {
					b.Fatal(err)
				}
				times = append(times, time.Since(start))
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-us")
			b.ReportMetric(0, "ns/op")
		})
	}
}
