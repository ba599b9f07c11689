package cases

import (
	"fmt"

	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/system"
)

// server returns the parameters that select the server. "host" is the setup of the KSI
// paper: a client in a container, and a server on the other node's host.
func server(port string) []plan.Parameter {
	return []plan.Parameter{
		{Name: "to", Default: string(system.OnHost), Help: "host (a server on bare metal), pod, or service; on another node", Check: plan.OneOf("host", "pod", "service")},
		{Name: "port", Default: port, Help: "of the server", Check: positive},
		{Name: "seconds", Default: "30", Help: "how long", Check: positive},
	}
}

// serve returns the server that the parameters of server select.
func serve(p map[string]string, args ...string) *system.Server {
	return &system.Server{Args: args, Port: int(number(p, "port")), At: system.Where(p["to"])}
}

// with sets whether a server has UDP ports, and only these.
func with(s *system.Server, udp, only bool) *system.Server {
	s.UDP, s.UDPOnly = udp, only
	return s
}

// bandwidth measures figures 8 and 10 of the KSI paper.
func bandwidth() Case {
	return Case{
		Kind: plan.Kind{
			Name: "bandwidth", Summary: "iperf3 from a container on the first host to a server on the second", Hosts: 2,
			Parameters: append(server("5003"),
				plan.Parameter{Name: "direction", Default: "to", Help: "to (the server) or from (it)", Check: plan.OneOf("to", "from")},
				plan.Parameter{Name: "streams", Default: "1", Help: "connections at a time", Check: positive},
				plan.Parameter{Name: "protocol", Default: "tcp", Help: "tcp or udp (without a limit)", Check: plan.OneOf("tcp", "udp")},
				plan.Parameter{Name: "length", Default: "128k", Help: "of each write; of each packet with udp", Check: length},
			),
			Seconds: func(p map[string]string) float64 { return number(p, "seconds") + 1 },
		},
		Task: func(p map[string]string, _, _ int) (system.Task, error) {
			args := []string{
				"iperf3", "--json", "-c", system.ServerHere, "-p", p["port"], "-i", "1", "-t", p["seconds"],
				"-P", p["streams"], "-l", p["length"],
			}
			if p["protocol"] == "udp" {
				args = append(args, "-u", "-b", "0")
			}
			if p["direction"] == "from" {
				args = append(args, "-R")
			}
			return system.Task{Args: args, Window: true, Connects: true, Server: with(serve(p, "iperf3", "-s", "-p", p["port"]), true, false)}, nil
		},
		Read: func(p map[string]string, out system.Output) ([]record.Value, error) {
			type sum struct {
				Bits        float64 `json:"bits_per_second"`
				Bytes       float64 `json:"bytes"`
				Lost        float64 `json:"lost_percent"`
				Retransmits float64 `json:"retransmits"`
			}
			var said struct {
				Error string
				End   struct {
					Sum      sum `json:"sum"`
					Sent     sum `json:"sum_sent"`
					Received sum `json:"sum_received"`
				}
			}
			if err := fromJSON(out.Stdout, &said); err != nil {
				return nil, err
			}
			if said.Error != "" {
				return nil, fmt.Errorf("iperf3: %s", said.Error)
			}
			values := []record.Value{{Name: "received", Unit: "Gbit/s", Better: higher, Value: said.End.Received.Bits / 1e9}}
			if p["protocol"] == "udp" {
				values = append(values, record.Value{Name: "lost", Unit: "%", Better: lower, Value: said.End.Sum.Lost})
			} else {
				values = append(values, record.Value{Name: "sent again", Unit: "segments", Better: lower, Value: said.End.Sent.Retransmits})
			}
			return append(values, perUnit(out, said.End.Received.Bytes/1e9, "GB")...), nil
		},
	}
}

// length returns an error unless a value is a number of bytes, with or without a unit.
func length(value string) error {
	if positive(value) == nil {
		return nil
	}
	return size(value)
}

// latency measures figures 7 and 9 of the KSI paper: round trips of 200 bytes. It uses
// sockperf, because Debian has no netperf.
func latency() Case {
	return Case{
		Kind: plan.Kind{
			Name: "latency", Summary: "round trips by sockperf from a container on the first host to a server on the second", Hosts: 2,
			// Not iperf3's port, which iperf3's last connection may still block.
			Parameters: append(server("5004"),
				plan.Parameter{Name: "bytes", Default: "200", Help: "of each message", Check: positive},
				plan.Parameter{Name: "protocol", Default: "tcp", Help: "tcp or udp", Check: plan.OneOf("tcp", "udp")},
			),
			Seconds: func(p map[string]string) float64 { return number(p, "seconds") + 2 },
		},
		Task: func(p map[string]string, _, _ int) (system.Task, error) {
			client := []string{
				"sockperf", "ping-pong", "-i", system.ServerHere, "-p", p["port"], "-m", p["bytes"], "-t", p["seconds"], "--full-rtt",
			}
			served := []string{"sockperf", "server", "-p", p["port"]}
			if p["protocol"] == "tcp" {
				client, served = append(client, "--tcp"), append(served, "--tcp")
			}
			return system.Task{Args: client, Window: true, Connects: true, Server: with(serve(p, served...), p["protocol"] == "udp", p["protocol"] == "udp")}, nil
		},
		Read: func(_ map[string]string, out system.Output) (values []record.Value, err error) {
			for _, figure := range []struct{ name, pattern string }{
				{"median round trip", `percentile 50\.000 = +([0-9.]+)`},
				{"90th percentile", `percentile 90\.000 = +([0-9.]+)`},
				{"99th percentile", `percentile 99\.000 = +([0-9.]+)`},
				{"99.9th percentile", `percentile 99\.900 = +([0-9.]+)`},
				{"mean round trip", `avg-rtt=([0-9.]+)`},
				{"standard deviation", `std-dev=([0-9.]+)`},
				{"shortest", `<MIN> observation = +([0-9.]+)`},
				{"longest", `<MAX> observation = +([0-9.]+)`},
			} {
				v, err := find(out.Stdout, figure.pattern)
				if err != nil {
					return nil, err
				}
				values = append(values, record.Value{Name: figure.name, Unit: "µs", Better: lower, Value: v})
			}
			// The time of the processors includes the first and last round trips, which
			// the percentiles omit. So divide it by the number of all.
			trips, err := find(out.Stdout, `\[Total Run\].* ReceivedMessages=([0-9]+)`)
			if err != nil {
				return nil, err
			}
			return append(values, perUnit(out, trips/1000, "1000 round trips")...), nil
		},
	}
}

// connections measures whole cycles: connect, send a message, receive the answer, close. It
// uses fortio, because no program of Debian measures this.
func connections() Case {
	return Case{
		Kind: plan.Kind{
			Name: "connections", Summary: "connect, one message there and back, close: by fortio, to a server on the second host", Hosts: 2,
			Parameters: append(server("5005"),
				plan.Parameter{Name: "threads", Default: "8", Help: "cycles at a time", Check: positive},
				plan.Parameter{Name: "bytes", Default: "200", Help: "of each message", Check: positive},
			),
			Seconds: func(p map[string]string) float64 { return number(p, "seconds") + 1 },
		},
		Task: func(p map[string]string, _, _ int) (system.Task, error) {
			return system.Task{
				Args: []string{
					"fortio", "load", "-quiet", "-loglevel", "error", "-json", "-", "-keepalive=false", "-qps", "0", "-p", "50,90,99,99.9", "-r", "0.00001",
					"-t", p["seconds"] + "s", "-c", p["threads"], "-payload-size", p["bytes"], "http://" + system.ServerHere + ":" + p["port"] + "/",
				},
				Window: true, Connects: true,
				Server: serve(p, "fortio", "server", "-loglevel", "error", "-http-port", p["port"],
					"-grpc-port", "disabled", "-tcp-port", "disabled", "-udp-port", "disabled", "-redirect-port", "disabled"),
			}, nil
		},
		Read: func(_ map[string]string, out system.Output) ([]record.Value, error) {
			var said struct {
				ActualQPS         float64
				RetCodes          map[string]float64
				DurationHistogram struct {
					Count, Min, Max, Avg, StdDev float64
					Percentiles                  []struct{ Percentile, Value float64 }
				}
			}
			if err := fromJSON(out.Stdout, &said); err != nil {
				return nil, err
			}
			took := said.DurationHistogram
			if took.Count == 0 || said.RetCodes["200"] != took.Count {
				return nil, fmt.Errorf("fortio made %.0f cycles, with these status codes: %v", took.Count, said.RetCodes)
			}
			values := []record.Value{{Name: "cycles per second", Unit: "1/s", Better: higher, Value: said.ActualQPS}}
			time := func(name string, seconds float64) {
				values = append(values, record.Value{Name: name, Unit: "µs", Better: lower, Value: seconds * 1e6})
			}
			for _, p := range took.Percentiles {
				time(fmt.Sprintf("%gth percentile", p.Percentile), p.Value)
			}
			time("mean", took.Avg)
			time("standard deviation", took.StdDev)
			time("shortest", took.Min)
			time("longest", took.Max)
			return append(values, perUnit(out, took.Count/1000, "1000 cycles")...), nil
		},
	}
}
