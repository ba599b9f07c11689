package egress

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
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

// BenchmarkIperf measures TCP between the node and the host with iperf3. The
// metrics are gigabits per second, and processor seconds per gigabyte of this
// process (egress) and of all three processes.
func BenchmarkIperf(b *testing.B) {
	if _, err := exec.LookPath("iperf3"); err != nil {
		b.Skip("needs iperf3")
	}
	debug.SetGCPercent(50)
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
	server.Stdout, server.Stderr = nil, nil
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	eventually(b, "iperf3 listens", func() bool {
		return exec.Command("ss", "-Hltn", "sport", "=", "5201").Run() == nil && listening(5201)
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
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	b.ReportMetric(float64(memory.Sys)/(1<<20), "MB")
	l.cancel()
	l.wait()
	b.ReportMetric(float64(l.stats().Repeated), "repeated")
	b.ReportMetric(float64(l.stats().Dropped), "dropped")
	_ = os.Stdout
}

func listening(port int) bool {
	connections, _ := os.ReadFile("/proc/net/tcp")
	return len(connections) > 0 && string(connections) != "" && containsPort(connections, port)
}

func containsPort(table []byte, port int) bool {
	needle := fmt.Sprintf(":%04X 00000000:0000 0A", port)
	for i := 0; i+len(needle) <= len(table); i++ {
		if string(table[i:i+len(needle)]) == needle {
			return true
		}
	}
	return false
}
