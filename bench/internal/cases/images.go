package cases

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"berth.dev/berth/bench/internal/deliver"
	"berth.dev/berth/bench/internal/plan"
	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/system"
)

const megabit = 1e6 // in bits

// registryLine returns the parameters for the connection to the registry: its rate and delay.
func registryLine() []plan.Parameter {
	return []plan.Parameter{
		{Name: "rate", Default: "200", Help: "of the line to the registry, for all hosts together, in Mbit/s; 0: no limit", Check: integer},
		{Name: "delay", Default: "10", Help: "before each connection and request, in ms", Check: integer},
	}
}

// patchMB is the size in megabytes of the image whose versions are delivered.
const patchMB = 258

// onLine estimates the time in seconds to transfer and unpack an image of that many
// megabytes.
func onLine(p map[string]string, megabytes float64) float64 {
	if rate := number(p, "rate"); rate > 0 {
		return 8 * megabytes / rate
	}
	return megabytes / 100 // only to unpack it
}

// versions returns the parameter for the number of versions, with a default.
func versions(number string) plan.Parameter {
	return plan.Parameter{Name: "versions", Default: number, Help: "of the image, each with a different last layer", Check: positive}
}

// integer returns an error unless a value is a whole number from zero.
func integer(value string) error {
	if n, err := strconv.Atoi(value); err != nil || n < 0 {
		return fmt.Errorf("give a whole number from 0")
	}
	return nil
}

// delivered returns the delivery of the named images to that many nodes.
func delivered(p map[string]string, work deliver.Work, on int, names ...string) *system.Images {
	return &system.Images{
		Names: names, Work: work, Nodes: on,
		BitsPerSecond: number(p, "rate") * megabit, Delay: time.Duration(number(p, "delay")) * time.Millisecond,
	}
}

// patchTuesday returns the case for figure 2 of the paper on image delivery: two nodes
// receive versions of an image that differ in their last layer, and run a worker.
func patchTuesday() Case {
	return versioned(plan.Kind{
		Name: "patch-tuesday", Summary: "versions of an image come to two nodes one after the other, and work there", Hosts: 2,
		Parameters: []plan.Parameter{versions("5"), {
			Name: "worker-memory", Default: "1000", Help: "what each of the workers gets beside one core, in MB; 0: none runs", Check: integer,
		}},
		Seconds: func(p map[string]string) float64 { return onLine(p, patchMB) + 8 + 3*number(p, "versions") },
	}, false)
}

// coldNode returns the case that delivers each version to the empty nodes of a new run. An
// earlier run has filled the folder of layers that runs can share, so the case measures the
// time that the folder saves.
func coldNode() Case {
	return versioned(plan.Kind{
		Name: "cold-node", Summary: "each version comes to nodes that have nothing, where runs share what they can", Hosts: 2,
		Parameters: []plan.Parameter{versions("5")},
		Seconds:    func(p map[string]string) float64 { return 10 + 6*number(p, "versions") },
	}, true)
}

// fourNodes returns the case that delivers an image to four nodes at once, and counts how
// often the registry sends it.
func fourNodes() Case {
	return versioned(plan.Kind{
		Name: "four-nodes", Summary: "an image comes to four nodes that have nothing, at the same time", Hosts: 4,
		Parameters: []plan.Parameter{versions("1")},
		Seconds:    func(p map[string]string) float64 { return onLine(p, patchMB) + 10 + 3*number(p, "versions") },
	}, false)
}

// versioned returns a case that delivers versions of an image to all its hosts. If fresh is
// set, the nodes are empty for each version.
func versioned(kind plan.Kind, fresh bool) Case {
	kind.Parameters, kind.Images = append(registryLine(), kind.Parameters...), true
	return Case{
		Kind: kind,
		Task: func(p map[string]string, _, _ int) (system.Task, error) {
			var names []string
			for v := range int(number(p, "versions")) {
				names = append(names, fmt.Sprintf("patch:v%d", v+1))
			}
			images := delivered(p, deliver.Workers, kind.Hosts, names...)
			images.WorkerMB, images.Fresh = int(number(p, "worker-memory")), fresh
			return system.Task{Images: images}, nil
		},
		Read: func(p map[string]string, out system.Output) ([]record.Value, error) {
			return readVersions(p, out, kind.Hosts, fresh)
		},
	}
}

// lazyPull returns the case for figure 3 of the paper on image delivery: the time from submission until
// a pipeline reaches its checkpoints. These are plain Python, a library, and a file that is
// most of the image.
func lazyPull() Case {
	return Case{
		Kind: plan.Kind{
			Name: "lazy", Summary: "a pipeline with checkpoints, of an image that no node has", Hosts: 1, Images: true,
			Parameters: append(registryLine(), plan.Parameter{Name: "tier", Default: "large", Help: "small, medium or large: an asset of 40, 120 or 200 MiB", Check: plan.OneOf("small", "medium", "large")}),
			Seconds: func(p map[string]string) float64 {
				return onLine(p, map[string]float64{"small": 110, "medium": 195, "large": 280}[p["tier"]]) + 5
			},
		},
		Task: func(p map[string]string, _, _ int) (system.Task, error) {
			return system.Task{Images: delivered(p, deliver.Pipeline, 1, "lazy:"+p["tier"])}, nil
		},
		Read: func(_ map[string]string, out system.Output) (values []record.Value, err error) {
			images, err := readImages(out, 1)
			if err != nil {
				return nil, err
			}
			const checkpoints = 3
			if len(images[0].Checkpoints) != checkpoints {
				return nil, fmt.Errorf("there are %d checkpoints, want %d", len(images[0].Checkpoints), checkpoints)
			}
			for n, seconds := range images[0].Checkpoints {
				values = append(values, record.Value{Name: fmt.Sprintf("checkpoint %d", n+1), Unit: "s", Better: lower, Value: seconds})
			}
			return append(values, record.Value{Name: "sent by the registry", Unit: "MB", Better: lower, Value: float64(images[0].Bytes) / 1e6}), nil
		},
	}
}

// readImages parses the result of a delivery. It returns an error unless it has the wanted
// number of images.
func readImages(out system.Output, want int) ([]deliver.Image, error) {
	var said deliver.Result
	if err := fromJSON(out.Stdout, &said); err != nil {
		return nil, err
	}
	if len(said.Images) != want {
		return nil, fmt.Errorf("%d images were delivered, want %d", len(said.Images), want)
	}
	return said.Images, nil
}

// readVersions returns the figures of each version on the slowest node. If the nodes were
// empty, they include the bytes that the registry sent, divided by the size of the image.
func readVersions(p map[string]string, out system.Output, nodes int, fresh bool) (values []record.Value, err error) {
	images, err := readImages(out, int(number(p, "versions")))
	if err != nil {
		return nil, err
	}
	for n, image := range images {
		add := func(name, unit string, value float64) {
			values = append(values, record.Value{Name: fmt.Sprintf("v%d %s", n+1, name), Unit: unit, Better: lower, Value: value})
		}
		// A SIF file is built once, for all hosts.
		want := nodes
		if image.Packing > 0 {
			want = 1
		}
		if len(image.First) < want || len(image.Pull) < want {
			return nil, fmt.Errorf("%s has times of %d first instructions and %d pulls, want %d", image.Name, len(image.First), len(image.Pull), want)
		}
		pull := slices.Max(image.Pull)
		add("first instruction", "s", slices.Max(image.First))
		add("pull", "s", pull)
		switch {
		case image.Packing > 0:
			add("sandbox", "s", image.Sandbox)
			add("packing", "s", image.Packing)
		case image.Fetched > 0:
			add("fetched", "s", image.Fetched)
			add("first instruction after it", "s", slices.Max(image.First)-image.Fetched)
		}
		add("CPU time", "s", image.CPU)
		add("sent by the registry", "MB", float64(image.Bytes)/1e6)
		if (n == 0 || fresh) && image.Size > 0 {
			add("sent by the registry, of the image", "times", float64(image.Bytes)/float64(image.Size))
		}
		if image.Run > 0 {
			add("run", "s", image.Run)
		}
	}
	return values, nil
}
