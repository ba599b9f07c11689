package usage

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

// answer is a kubelet's answer for a volume in memory and a pod with two
// containers, one of them just started.
const answer = `# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="web",namespace="team",pod="web-0"} 12.5 1795266027315
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="web",namespace="team",pod="web-0"} 1.048576e+06 1795266027315
container_memory_working_set_bytes{container="late",namespace="team",pod="web-0"} 4096 1795266027315
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container="web",namespace="team",pod="web-0"} 1.7952660240495994e+09
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 40.25 1795266027315
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 2.99687936e+08 1795266027315
# TYPE pod_memory_working_set_bytes gauge
pod_memory_working_set_bytes{namespace="team",pod="web-0"} 5.24288e+06 1795266027315
`

func TestReadSample(t *testing.T) {
	s, err := readSample(strings.NewReader(answer), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	at := time.UnixMilli(1795266027315)
	if want := (point{at: at, cpu: 40250 * time.Millisecond, memory: 299687936}); s.node != want {
		t.Errorf("node: %+v, want %+v", s.node, want)
	}
	web := s.containers[container{"team", "web-0", "web"}]
	if web.cpu != 12500*time.Millisecond || web.memory != 1<<20 || !web.at.Equal(at) {
		t.Errorf("container: %+v", web)
	}
	if age := at.Sub(web.started).Round(time.Millisecond); age != 3265*time.Millisecond {
		t.Errorf("the container is %s old", age)
	}
	if len(s.containers) != 1 {
		t.Errorf("%d containers; one has no CPU yet", len(s.containers))
	}
	if got := s.pods[container{"team", "web-0", ""}]; got != 5<<20 {
		t.Errorf("the pod has %d bytes", got)
	}
}

func TestReadSampleRefuses(t *testing.T) {
	for _, body := range []string{"", "no metric at all {", `container_start_time_seconds{pod="x"} 3` + "\n"} {
		if _, err := readSample(strings.NewReader(body), time.Now()); err == nil {
			t.Errorf("%q was taken for what a kubelet says", body)
		}
	}
}

// FuzzReadSample: a pod cannot write what its kubelet says, but its name and its
// numbers are in it.
func FuzzReadSample(f *testing.F) {
	f.Add(answer)
	f.Fuzz(func(t *testing.T, body string) {
		fuzzbound.Watch(t)
		_, _ = readSample(strings.NewReader(body), time.Time{})
	})
}

// fakeNode is a kubelet whose work takes cores processors, on a clock that only
// pauses move.
type fakeNode struct {
	clock time.Time
	cores float64
	asked int
	err   error
}

func (n *fakeNode) history() *history {
	return &history{
		now:   func() time.Time { return n.clock },
		pause: func(_ context.Context, d time.Duration) { n.clock = n.clock.Add(max(0, d)) },
		ask: func(context.Context) (*sample, error) {
			n.asked++
			cpu := time.Duration(n.cores * float64(n.clock.Sub(time.Unix(0, 0))))
			return &sample{taken: n.clock, node: point{at: n.clock, cpu: cpu}}, n.err
		},
	}
}

func TestHistory(t *testing.T) {
	n := &fakeNode{clock: time.Unix(1000, 0), cores: 1.5}
	h := n.history()
	ask := func(what string, wantAsked int, wantWindow time.Duration) {
		t.Helper()
		before := n.asked
		base, newest, err := h.pair(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		u, known := between(base.node, newest.node, true)
		if !known || u.cores < 1.499 || u.cores > 1.501 {
			t.Errorf("%s: %v cores, known %t, want 1.5", what, u.cores, known)
		}
		if u.window != wantWindow || n.asked-before != wantAsked {
			t.Errorf("%s: %d questions, over %s; want %d, %s", what, n.asked-before, u.window, wantAsked, wantWindow)
		}
	}
	ask("first", 2, shortest)
	ask("at once", 0, shortest)
	n.clock = n.clock.Add(5 * time.Second)
	ask("soon", 1, 6*time.Second)
	n.clock = n.clock.Add(9 * time.Second)
	ask("later", 1, 14*time.Second)
	n.clock = n.clock.Add(15 * time.Second)
	ask("an autoscaler's next look", 1, 15*time.Second)
	n.clock = n.clock.Add(stale + time.Second)
	ask("after a long silence", 2, shortest)
}

func TestHistoryOfSilentKubelet(t *testing.T) {
	n := &fakeNode{clock: time.Unix(1000, 0), err: errors.New("no route")}
	if _, _, err := n.history().pair(t.Context()); !errors.Is(err, n.err) {
		t.Errorf("error %v, want %v", err, n.err)
	}
}

func TestBetween(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(0, int64(s*1e9)) }
	cpu := func(s float64) time.Duration { return time.Duration(s * 1e9) }
	for _, test := range []struct {
		name           string
		earlier, later point
		known          bool
		want           float64
		unknown        bool
	}{
		{name: "the same life", earlier: point{at: at(10), cpu: cpu(3)}, later: point{at: at(20), cpu: cpu(8)}, known: true, want: 0.5},
		{name: "new", later: point{at: at(20), started: at(16), cpu: cpu(2)}, want: 0.5},
		{name: "too new", later: point{at: at(20), started: at(19.9), cpu: cpu(2)}, unknown: true},
		{name: "new, of unknown age", later: point{at: at(20), cpu: cpu(2)}, unknown: true},
		{name: "restarted", earlier: point{at: at(10), started: at(1), cpu: cpu(1)}, later: point{at: at(20), started: at(12), cpu: cpu(2)}, known: true, want: 0.25},
		{name: "counting from nothing again", earlier: point{at: at(10), cpu: cpu(9)}, later: point{at: at(20), cpu: cpu(2)}, known: true, unknown: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			u, known := between(test.earlier, test.later, test.known)
			if known == test.unknown || known && u.cores != test.want {
				t.Errorf("%v cores, known %t; want %v, %t", u.cores, known, test.want, !test.unknown)
			}
		})
	}
}

func TestPodMetrics(t *testing.T) {
	read := func(body string) *sample {
		s, err := readSample(strings.NewReader(body), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web-0"},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{
				{Name: "web", VolumeMounts: []corev1.VolumeMount{{Name: "cache"}}},
				{Name: "ended"},
			},
			Volumes: []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory},
			}}},
		},
	}
	earlier := strings.NewReplacer(" 12.5 1795266027315", " 11.5 1795266025315").Replace(answer)
	measured, known := podMetrics(pod, readings{base: read(earlier), newest: read(answer)})
	if !known || len(measured.Containers) != 1 {
		t.Fatalf("known %t: %+v", known, measured)
	}
	usage := measured.Containers[0].Usage
	if got := usage.Cpu().MilliValue(); got != 500 {
		t.Errorf("%d m of CPU, want 500", got)
	}
	if got := usage.Memory().Value(); got != 5<<20 {
		t.Errorf("%d bytes; the volume's are %s's", got, measured.Containers[0].Name)
	}
	if measured.Window.Duration != 2*time.Second {
		t.Errorf("over %s", measured.Window.Duration)
	}
	fresh := strings.ReplaceAll(answer, "1.7952660240495994e+09", "1.7952660272495994e+09")
	if _, known := podMetrics(pod, readings{base: &sample{}, newest: read(fresh)}); known {
		t.Error("something is said of a container that is 65 ms old")
	}
}
