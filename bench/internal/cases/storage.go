package cases

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/system"
)

// storage measures figures 5 and 6 of the KSI paper. Reads use a file that fio writes
// before the measurement. By default reads and writes bypass the page cache.
func storage() Case {
	return Case{
		Kind: plan.Kind{
			Name: "storage", Summary: "one file by fio, in order or at random; on bare metal always in a folder of the host", Hosts: 1,
			Parameters: []plan.Parameter{
				{Name: "on", Default: string(system.Scratch), Help: "scratch, empty-dir, claim or root (the container's own file system)", Check: plan.OneOf("scratch", "empty-dir", "claim", "root")},
				{Name: "how", Default: "write", Help: "write, read, randwrite or randread", Check: plan.OneOf("write", "read", "randwrite", "randread")},
				{Name: "size", Default: "8G", Help: "of the file: twice the memory of the job or more", Check: size},
				{Name: "block", Default: "256k", Help: "of each request", Check: size},
				{Name: "direct", Default: "1", Help: "1: past the page cache, 0: through it", Check: plan.OneOf("0", "1")},
			},
			Seconds: func(p map[string]string) float64 { return 1 + bytes(p["size"])/250e6 },
		},
		Task: func(p map[string]string, _, _ int) (system.Task, error) {
			return system.Task{Window: true, Folder: system.Folder(p["on"]), Args: []string{
				"fio", "--name=bench", "--filename=" + system.FolderHere + "/fio", "--rw=" + p["how"], "--bs=" + p["block"], "--size=" + p["size"],
				"--direct=" + p["direct"], "--ioengine=psync", "--end_fsync=1", "--output-format=json",
			}}, nil
		},
		Read: func(p map[string]string, out system.Output) ([]record.Value, error) {
			var said struct {
				Jobs []struct {
					Read, Write struct {
						Bandwidth float64 `json:"bw_bytes"`
						Bytes     float64 `json:"io_bytes"`
					}
				}
			}
			if err := fromJSON(out.Stdout, &said); err != nil {
				return nil, err
			}
			if len(said.Jobs) != 1 {
				return nil, fmt.Errorf("fio reported %d jobs instead of one", len(said.Jobs))
			}
			done := said.Jobs[0].Write
			if strings.HasSuffix(p["how"], "read") {
				done = said.Jobs[0].Read
			}
			values := []record.Value{{Name: "throughput", Unit: "MB/s", Better: higher, Value: done.Bandwidth / 1e6}}
			return append(values, perUnit(out, done.Bytes/1e9, "GB")...), nil
		},
	}
}

// bytes parses a size that the function size has checked.
func bytes(size string) float64 {
	n, err := strconv.ParseFloat(size[:len(size)-1], 64)
	if err != nil {
		return 0
	}
	return n * map[string]float64{"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[strings.ToLower(size[len(size)-1:])]
}

// fromJSON parses the JSON object that a program printed. It ignores text around the object.
func fromJSON(text string, into any) error {
	start := strings.Index(text, "{")
	if start < 0 {
		return fmt.Errorf("the program printed no JSON")
	}
	if err := json.NewDecoder(strings.NewReader(text[start:])).Decode(into); err != nil {
		return fmt.Errorf("read the program's JSON: %w", err)
	}
	return nil
}
