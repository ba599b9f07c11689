package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"berth.dev/berth/internal/testutil"
)

func now() time.Time { return time.Date(2026, 11, 21, 13, 30, 0, 0, time.UTC) }

// fakeAPI answers from a table of paths. A missing path is an error.
type fakeAPI map[string]string

func (f fakeAPI) Text(_ context.Context, path string) (string, error) {
	text, known := f[path]
	if !known {
		return "", fmt.Errorf("ask the API server for %s: 503", path)
	}
	return text, nil
}

func (f fakeAPI) Get(ctx context.Context, path string, into any) error {
	text, err := f.Text(ctx, path)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), into)
}

func nodeJSON(name, status string) string {
	return `{"metadata":{"name":"` + name + `"},"status":{"capacity":{"cpu":"4","memory":"8Gi"},"conditions":[{"type":"Ready","status":"` + status + `"}]}}`
}

func lab() fakeAPI {
	return fakeAPI{
		"/api/v1/nodes": `{"items":[` + nodeJSON("n2", "True") + "," + nodeJSON("n1", "True") + "," + nodeJSON("n3", "Unknown") + "," + strings.Replace(nodeJSON("slurm-n1-main", "True"), `"name":`, `"labels":{"type":"virtual-kubelet"},"name":`, 1) + `]}`,
		"/api/v1/pods": `{"items":[
			{"metadata":{"namespace":"default","name":"train-0"},"spec":{"nodeName":"n1","containers":[{},{}]},
			 "status":{"phase":"Running","startTime":"2026-11-21T12:00:00Z","containerStatuses":[{"ready":true,"restartCount":2},{"ready":true}]}},
			{"metadata":{"namespace":"team","name":"web"},"spec":{"nodeName":"n2","containers":[{}]},
			 "status":{"phase":"Pending","startTime":"2026-11-21T13:29:30Z","containerStatuses":[{"image":"big:1","state":{"waiting":{"reason":"ContainerCreating"}}}]}},
			{"metadata":{"namespace":"team","name":"broken"},"spec":{"nodeName":"n2","containers":[{}]},
			 "status":{"phase":"Failed","containerStatuses":[{"state":{"terminated":{"reason":"OOMKilled"}}}]}},
			{"metadata":{"namespace":"team","name":"done"},"spec":{"nodeName":"n1","containers":[{}]},"status":{"phase":"Succeeded"}},
			{"metadata":{"namespace":"team","name":"ending","deletionTimestamp":"2026-11-21T13:29:59Z"},"spec":{"nodeName":"n1","containers":[{}]},"status":{"phase":"Running"}}
		]}`,
		"/api/v1/events?resourceVersion=0&fieldSelector=type%3DWarning": `{"items":[
			{"involvedObject":{"kind":"Pod","namespace":"team","name":"broken"},"reason":"OOMKilled","message":"out of\n\u001b[31mmemory","lastTimestamp":"2026-11-21T13:28:00Z","count":3},
			{"involvedObject":{"kind":"Node","name":"n3"},"reason":"NodeLost","message":"gone","eventTime":"2026-11-21T13:29:00.5Z"}]}`,
		"/api/v1/events?resourceVersion=0&fieldSelector=reason%3DPulling": `{"items":[
			{"involvedObject":{"kind":"Pod","namespace":"team","name":"web"},"reason":"Pulling","message":"Pulling image \"big:1\"","lastTimestamp":"2026-11-21T13:29:35Z"},
			{"involvedObject":{"kind":"Pod","namespace":"default","name":"train-0"},"reason":"Pulling","message":"Pulling image \"old:1\"","lastTimestamp":"2026-11-21T12:00:00Z"}]}`,
		"/apis/metrics.k8s.io/v1beta1/nodes": `{"items":[{"metadata":{"name":"n1"},"usage":{"cpu":"1500m","memory":"2Gi"}},{"metadata":{"name":"n2"},"usage":{"cpu":"250000000n","memory":"512Mi"}}]}`,
		"/apis/metrics.k8s.io/v1beta1/pods":  `{"items":[{"metadata":{"namespace":"default","name":"train-0"},"containers":[{"usage":{"cpu":"1","memory":"1Gi"}},{"usage":{"cpu":"250m","memory":"512Mi"}}]}]}`,
		"/api/v1/nodes/http:n1:10247/proxy/metrics": "berth_job_left_seconds{node=\"n1\"} 5025\nberth_overlay_received_bytes_total{node=\"n1\"} 1048576\n" +
			"berth_overlay_dropped_packets_total{node=\"n1\",reason=\"foreign\"} 2\nberth_overlay_dropped_packets_total{node=\"n1\",reason=\"stray\"} 1\n",
		"/api/v1/nodes/http:n2:10247/proxy/metrics": "# HELP x y\nberth_egress_to_pods_bytes_total{node=\"n2\"} 4096\nberth_image_received_bytes{node=\"n2\"} 314572800\nberth_image_expected_bytes{node=\"n2\"} 1288490188\n",
	}
}

// read takes two snapshots, two seconds apart.
func read(t *testing.T, api fakeAPI) *snapshot {
	t.Helper()
	first, err := readSnapshot(t.Context(), api, nil, func() time.Time { return now().Add(-2 * time.Second) })
	if err != nil {
		t.Fatal(err)
	}
	api["/api/v1/nodes/http:n1:10247/proxy/metrics"] = strings.ReplaceAll(api["/api/v1/nodes/http:n1:10247/proxy/metrics"], " 1048576", " 5242880")
	second, err := readSnapshot(t.Context(), api, first, now)
	if err != nil {
		t.Fatal(err)
	}
	return second
}

func TestRender(t *testing.T) {
	for name, view := range map[string]View{
		"plain":  {Title: "job 4711", Order: ByCPU},
		"wide":   {Title: "job 4711", Order: ByName, Width: 120, Height: 24, Keys: true},
		"narrow": {Title: "job 4711", Order: ByMemory, Width: 50, Height: 16, Keys: true},
		"low":    {Title: "job 4711", Order: ByName, Width: 100, Height: 8, Skip: 2, Notice: "no answer for 4s"},
		"tiny":   {Title: "job 4711", Width: 20, Height: 4},
		"colour": {Title: "job 4711", Order: ByCPU, Colour: true, Namespace: "team"},
	} {
		t.Run(name, func(t *testing.T) {
			got := view.render(read(t, lab()))
			lines := strings.Split(got, "\n")
			if view.Height > 0 && len(lines) > view.Height {
				t.Errorf("%d lines for %d", len(lines), view.Height)
			}
			for _, line := range lines {
				if view.Width > 0 && len([]rune(line)) > view.Width {
					t.Errorf("%d columns for %d: %q", len([]rune(line)), view.Width, line)
				}
			}
			if !view.Colour && strings.ContainsRune(got, '\x1b') {
				t.Error("an escape sequence came through")
			}
			testutil.Golden(t, name+".txt", got)
		})
	}
}

func TestRenderAnySize(t *testing.T) {
	s := read(t, lab())
	for width := 1; width < 140; width += 3 {
		for height := 1; height < 40; height++ {
			got := View{Title: "job 4711", Width: width, Height: height, Skip: height, Keys: true}.render(s)
			if lines := strings.Count(got, "\n") + 1; lines > height {
				t.Fatalf("%d lines in %dx%d", lines, width, height)
			}
		}
	}
}

// TestReadIsPartial: a snapshot reports data that could not be read, and has the rest.
func TestReadIsPartial(t *testing.T) {
	api := lab()
	delete(api, "/apis/metrics.k8s.io/v1beta1/pods")
	delete(api, "/api/v1/nodes/http:n2:10247/proxy/metrics")
	s, err := readSnapshot(t.Context(), api, nil, now)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Pods) != 5 || len(s.Problems) != 2 || !strings.Contains(s.Problems[1], "n2") {
		t.Errorf("%d pods, problems %q", len(s.Pods), s.Problems)
	}
	if _, err := readSnapshot(t.Context(), fakeAPI{}, nil, now); err == nil {
		t.Error("nothing was read, without an error")
	}
}

func TestKeys(t *testing.T) {
	m := &model{ctx: t.Context(), api: lab(), answered: time.Now(), every: time.Hour}
	press := func(keys ...tea.KeyMsg) {
		for _, key := range keys {
			m.Update(key)
		}
	}
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 20})
	m.Update(m.read()())
	press(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune("m")}, tea.KeyMsg{Type: tea.KeyDown}, tea.KeyMsg{Type: tea.KeyDown}, tea.KeyMsg{Type: tea.KeyUp})
	if m.view.Order != ByMemory || m.view.Skip != 1 {
		t.Errorf("order %s, skip %d", m.view.Order, m.view.Skip)
	}
	press(tea.KeyMsg{Type: tea.KeyPgDown}, tea.KeyMsg{Type: tea.KeyPgDown})
	if m.view.Skip != 4 {
		t.Errorf("%d of 5 pods are scrolled away", m.view.Skip)
	}
	if !strings.Contains(m.View(), "train-0") {
		t.Errorf("nothing to see:\n%s", m.View())
	}
	for _, key := range []tea.KeyMsg{{Type: tea.KeyCtrlC}, {Type: tea.KeyRunes, Runes: []rune("q")}} {
		if _, command := m.Update(key); command == nil || command() != tea.Quit() {
			t.Errorf("%s does not end it", key)
		}
	}
}

func TestSilence(t *testing.T) {
	m := &model{ctx: t.Context(), answered: time.Now(), every: time.Hour}
	m.Update(readMsg{err: errors.New("refused")})
	if !strings.Contains(m.View(), "refused") || m.err != nil {
		t.Errorf("view %q, error %v", m.View(), m.err)
	}
	m.answered = m.answered.Add(-2 * silenceTimeout)
	if _, command := m.Update(readMsg{err: errors.New("refused")}); command == nil || command() != tea.Quit() || m.err == nil {
		t.Errorf("it goes on after %s, error %v", 2*silenceTimeout, m.err)
	}
	m = &model{ctx: t.Context()}
	if m.Update(lostMsg{}); !errors.Is(m.err, errLost) {
		t.Errorf("error %v", m.err)
	}
}
