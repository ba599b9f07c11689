package cases

import (
	"maps"
	"strings"
	"testing"

	"berth.dev/berth/bench/internal/system"
)

// TestCommands: each case runs the command of the papers, argument by argument, or a
// substitute if Debian does not have the program.
func TestCommands(t *testing.T) {
	const cpus = 4
	for _, c := range []struct {
		caseName  string
		different map[string]string
		want      string
		server    string
	}{
		// From the evaluation in the KSI paper.
		{caseName: "startup", want: "date +%s.%N"},
		{caseName: "cpu", want: "sysbench cpu --threads=4 --time=10 --cpu-max-prime=20000 run"},
		{caseName: "memory", want: "stress-ng --stdout --temp-path /tmp --stream 4 --stream-l3-size 32m --timeout 10 --metrics"},
		{
			caseName: "storage",
			want:     "fio --name=bench --filename=FOLDER/fio --rw=write --bs=256k --size=8G --direct=1 --ioengine=psync --end_fsync=1 --output-format=json",
		},
		{
			caseName: "storage", different: map[string]string{"how": "randread", "on": "claim"},
			want: "fio --name=bench --filename=FOLDER/fio --rw=randread --bs=256k --size=8G --direct=1 --ioengine=psync --end_fsync=1 --output-format=json",
		},
		{caseName: "bandwidth", want: "iperf3 --json -c SERVER -p 5003 -i 1 -t 30 -P 1 -l 128k", server: "iperf3 -s -p 5003"},
		{
			caseName: "latency", want: "sockperf ping-pong -i SERVER -p 5004 -m 200 -t 30 --full-rtt --tcp",
			server: "sockperf server -p 5004 --tcp",
		},
		// The packets of the CNI study, and the other direction.
		{
			caseName: "bandwidth", different: map[string]string{"protocol": "udp", "length": "1472", "direction": "from", "streams": "8"},
			want: "iperf3 --json -c SERVER -p 5003 -i 1 -t 30 -P 8 -l 1472 -u -b 0 -R", server: "iperf3 -s -p 5003",
		},
		{
			caseName: "latency", different: map[string]string{"protocol": "udp", "bytes": "9000"},
			want: "sockperf ping-pong -i SERVER -p 5004 -m 9000 -t 30 --full-rtt", server: "sockperf server -p 5004",
		},
		// Connect, request, response, close, as netperf's TCP_CRR.
		{
			caseName: "connections",
			want:     "fortio load -quiet -loglevel error -json - -keepalive=false -qps 0 -p 50,90,99,99.9 -r 0.00001 -t 30s -c 8 -payload-size 200 http://SERVER:5005/",
			server:   "fortio server -loglevel error -http-port 5005 -grpc-port disabled -tcp-port disabled -udp-port disabled -redirect-port disabled",
		},
	} {
		measured, _ := Find(c.caseName)
		parameters := map[string]string{}
		for _, p := range measured.Parameters {
			parameters[p.Name] = p.Default
		}
		maps.Copy(parameters, c.different)
		task, err := measured.Task(parameters, cpus, 8000)
		if err != nil {
			t.Fatal(err)
		}
		said := func(args []string) string {
			return strings.NewReplacer(system.ServerHere, "SERVER", system.FolderHere, "FOLDER").Replace(strings.Join(args, " "))
		}
		if got := said(task.Args); got != c.want {
			t.Errorf("%s: %s\nwant %s", c.caseName, got, c.want)
		}
		if c.server != "" && (task.Server == nil || said(task.Server.Args) != c.server) {
			t.Errorf("%s: its server is %+v\nwant %s", c.caseName, task.Server, c.server)
		}
	}
}
