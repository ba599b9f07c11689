package egress

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/testutil"
)

// cpu returns the processor time so far of this process (RUSAGE_SELF) or of its ended
// children (RUSAGE_CHILDREN).
func cpu(who int) time.Duration {
	var usage unix.Rusage
	unix.Getrusage(who, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkIperf measures TCP between the node and the host with iperf3. The
// metrics are gigabits per second, and processor seconds per gigabyte of this
// process (egress) and of all three processes.
func BenchmarkIperf(b *testing.B) {
	if _, err := exec.LookPath("iperf3"); err != nil {
		b.Skip("needs iperf3")
	}
	for _, direction := range []struct {
		name string
		args []string
	}{{"out", nil}, {"in", []string{"-R"}}, {"out4", []string{"-P4"}}, {"in4", []string{"-P4", "-R"}}} {
		for _, mtu := range []int{65520, 1500} {
			b.Run(fmt.Sprintf("%s/mtu%d", direction.name, mtu), func(b *testing.B) {
				l := newLab(b)
				l.setMTU(mtu)
				iperf(b, l, direction.args)
			})
		}
	}
}

func iperf(b *testing.B, l *lab, args []string) {
	server := exec.Command("iperf3", "-s", "-1", "-B", hostAddr.String())
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	defer server.Process.Kill()
	testutil.Eventually(b, "iperf3 listens", func() bool {
		return listening(5201)
	})
	egressBefore, allBefore := cpu(unix.RUSAGE_SELF), cpu(unix.RUSAGE_CHILDREN)
	client := exec.Command("iperf3", append([]string{"-J", "-t", "3", "-c", hostAddr.String()}, args...)...)
	var output []byte
	l.onNode(func() { output, _ = client.Output() })
	server.Wait()
	egressCPU := cpu(unix.RUSAGE_SELF) - egressBefore
	all := egressCPU + cpu(unix.RUSAGE_CHILDREN) - allBefore
	var report struct {
		End struct {
			Sent     struct{ Bytes, Retransmits float64 } `json:"sum_sent"`
			Received struct{ Bytes, Seconds float64 }     `json:"sum_received"`
		}
	}
	if err := json.Unmarshal(output, &report); err != nil || report.End.Received.Bytes == 0 {
		b.Fatalf("iperf3: %v\n%s", err, output)
	}
	gigabytes := report.End.Received.Bytes / 1e9
	b.ReportMetric(report.End.Received.Bytes*8/1e9/report.End.Received.Seconds, "Gbit/s")
	b.ReportMetric(egressCPU.Seconds()/gigabytes, "egress-cpu-s/GB")
	b.ReportMetric(all.Seconds()/gigabytes, "all-cpu-s/GB")
	b.ReportMetric(report.End.Sent.Retransmits, "retrans")
	b.ReportMetric(0, "ns/op")
}

// listening reports whether a port of the host is in state LISTEN (0A).
func listening(port int) bool {
	sockets, _ := os.ReadFile("/proc/net/tcp")
	return bytes.Contains(sockets, fmt.Appendf(nil, ":%04X 00000000:0000 0A", port))
}
