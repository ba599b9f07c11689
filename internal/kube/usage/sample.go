package usage

import (
	"fmt"
	"io"
	"math"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// container identifies a container in the cluster.
type container struct{ namespace, pod, name string }

// point is the total usage of a node or a container up to a moment.
type point struct {
	at      time.Time
	started time.Time     // zero where unknown
	cpu     time.Duration // since it started
	memory  uint64        // its working set, in bytes
}

// sample is a kubelet's answer at one time.
type sample struct {
	taken      time.Time
	node       point
	containers map[container]point
	// pods holds the memory of pods, in bytes. It includes volumes in memory, which belong
	// to no container. The keys have no container name.
	pods map[container]uint64
}

// Names in a kubelet's answer; KEP 727 fixes them.
const (
	nodeCPU          = "node_cpu_usage_seconds_total"
	nodeMemory       = "node_memory_working_set_bytes"
	containerCPU     = "container_cpu_usage_seconds_total"
	containerMemory  = "container_memory_working_set_bytes"
	containerStarted = "container_start_time_seconds"
	podMemory        = "pod_memory_working_set_bytes"
)

// readSample parses a kubelet's /metrics/resource. It omits a container without
// CPU or memory, because that has just started or ended.
func readSample(body io.Reader, taken time.Time) (result *sample, err error) {
	// expfmt v0.67.5 panics on labels without a metric's name after a TYPE line.
	defer func() {
		if p := recover(); p != nil {
			result, err = nil, fmt.Errorf("read what the kubelet measured: %v", p)
		}
	}()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(body)
	if err != nil {
		return nil, fmt.Errorf("read what the kubelet measured: %w", err)
	}
	s := &sample{taken: taken, containers: map[container]point{}, pods: map[container]uint64{}}
	for _, m := range families[nodeCPU].GetMetric() {
		s.node.at, s.node.cpu = momentOf(m, taken), seconds(valueOf(m))
	}
	for _, m := range families[nodeMemory].GetMetric() {
		s.node.memory = uint64(valueOf(m))
	}
	if s.node.at.IsZero() {
		return nil, fmt.Errorf("read what the kubelet measured: it has no %s", nodeCPU)
	}
	for _, m := range families[podMemory].GetMetric() {
		s.pods[containerOf(m)] = uint64(valueOf(m))
	}
	memory := map[container]uint64{}
	for _, m := range families[containerMemory].GetMetric() {
		memory[containerOf(m)] = uint64(valueOf(m))
	}
	started := map[container]time.Time{}
	for _, m := range families[containerStarted].GetMetric() {
		started[containerOf(m)] = time.Unix(0, int64(seconds(valueOf(m))))
	}
	for _, m := range families[containerCPU].GetMetric() {
		c := containerOf(m)
		if bytes, known := memory[c]; known {
			s.containers[c] = point{at: momentOf(m, taken), started: started[c], cpu: seconds(valueOf(m)), memory: bytes}
		}
	}
	return s, nil
}

func containerOf(m *dto.Metric) (c container) {
	for _, label := range m.GetLabel() {
		switch label.GetName() {
		case "namespace":
			c.namespace = label.GetValue()
		case "pod":
			c.pod = label.GetValue()
		case "container":
			c.name = label.GetValue()
		}
	}
	return c
}

func valueOf(m *dto.Metric) float64 {
	switch {
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	}
	return m.GetUntyped().GetValue()
}

// momentOf returns the time of a measurement, or otherwise if the kubelet gives none.
func momentOf(m *dto.Metric, otherwise time.Time) time.Time {
	if m.TimestampMs == nil {
		return otherwise
	}
	return time.UnixMilli(m.GetTimestampMs())
}

// seconds returns a duration of v seconds. It converts whole seconds separately, because a
// float64 cannot hold a time since 1970 in nanoseconds exactly.
func seconds(v float64) time.Duration {
	whole, part := math.Modf(v)
	return time.Duration(whole)*time.Second + time.Duration(part*float64(time.Second))
}
