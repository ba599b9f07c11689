package cases

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/bench/internal/deliver"
	"berth.dev/berth/bench/internal/system"
)

// defaults returns the parameters of a case in a plan that sets none.
func defaults(c Case) map[string]string {
	p := map[string]string{}
	for _, parameter := range c.Parameters {
		p[parameter.Name] = parameter.Default
	}
	return p
}

func TestImageTasks(t *testing.T) {
	for _, c := range []struct {
		measured Case
		want     system.Images
	}{
		{patchTuesday(), system.Images{Names: []string{"patch:v1", "patch:v2", "patch:v3", "patch:v4", "patch:v5"}, Work: deliver.Workers, Nodes: 2, WorkerMB: 1000}},
		{coldNode(), system.Images{Names: []string{"patch:v1", "patch:v2", "patch:v3", "patch:v4", "patch:v5"}, Work: deliver.Workers, Nodes: 2, Fresh: true}},
		{fourNodes(), system.Images{Names: []string{"patch:v1"}, Work: deliver.Workers, Nodes: 4}},
		{lazyPull(), system.Images{Names: []string{"lazy:large"}, Work: deliver.Pipeline, Nodes: 1}},
	} {
		task, err := c.measured.Task(defaults(c.measured), 2, 1000)
		if err != nil || task.Images == nil {
			t.Fatalf("%s: %+v, %v", c.measured.Name, task, err)
		}
		got := *task.Images
		if got.BitsPerSecond != 200e6 || got.Delay != 10*time.Millisecond {
			t.Errorf("%s: a line of %g bit/s and %s", c.measured.Name, got.BitsPerSecond, got.Delay)
		}
		if !slices.Equal(got.Names, c.want.Names) || got.Work != c.want.Work || got.Nodes != c.want.Nodes || got.Fresh != c.want.Fresh || got.WorkerMB != c.want.WorkerMB {
			t.Errorf("%s: got %+v, want %+v", c.measured.Name, got, c.want)
		}
	}
}

func TestReadImages(t *testing.T) {
	read := func(c Case, p map[string]string, text string) (string, error) {
		values, err := c.Read(p, system.Output{Stdout: text})
		var names []string
		for _, v := range values {
			names = append(names, v.Name+"="+strconv.FormatFloat(v.Value, 'g', -1, 64)+" "+v.Unit)
		}
		return strings.Join(names, ", "), err
	}
	p := map[string]string{"versions": "1"}
	for _, c := range []struct {
		measured   Case
		text, want string
	}{
		{
			patchTuesday(), `{"images":[{"first":[1.5,2],"pull":[0.5,1.25],"fetched":1,"bytes":2000000,"cpu":3.5,"run":4}]}`,
			"v1 first instruction=2 s, v1 pull=1.25 s, v1 fetched=1 s, v1 first instruction after it=1 s, v1 CPU time=3.5 s, v1 sent by the registry=2 MB, v1 run=4 s",
		},
		{
			patchTuesday(), `{"images":[{"first":[9],"pull":[8],"fetched":1,"sandbox":3,"packing":5,"cpu":7}]}`,
			"v1 first instruction=9 s, v1 pull=8 s, v1 sandbox=3 s, v1 packing=5 s, v1 CPU time=7 s, v1 sent by the registry=0 MB",
		},
		{
			fourNodes(), `{"images":[{"first":[1,1,1,1],"pull":[1,1,1,2],"fetched":1,"bytes":3000000,"size":2000000,"cpu":1}]}`,
			"v1 first instruction=1 s, v1 pull=2 s, v1 fetched=1 s, v1 first instruction after it=0 s, v1 CPU time=1 s, v1 sent by the registry=3 MB, v1 sent by the registry, of the image=1.5 times",
		},
		{lazyPull(), `{"images":[{"checkpoints":[1,2,3],"bytes":4000000}]}`, "checkpoint 1=1 s, checkpoint 2=2 s, checkpoint 3=3 s, sent by the registry=4 MB"},
	} {
		if got, err := read(c.measured, p, c.text); err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.measured.Name, got, err, c.want)
		}
	}
	for _, text := range []string{"", "{", `{"images":[]}`, `{"images":[{"first":[1]}]}`, `{"images":[{"first":[1],"pull":[1]},{}]}`} {
		if got, err := read(coldNode(), p, text); err == nil {
			t.Errorf("%q: %s", text, got)
		}
	}
	// Nodes need only a part of later versions.
	two, versions := `{"images":[{"first":[1,1],"pull":[1,1],"size":1},{"first":[1,1],"pull":[1,1],"size":1}]}`, map[string]string{"versions": "2"}
	for n, c := range []Case{patchTuesday(), coldNode()} {
		if got, err := read(c, versions, two); err != nil || strings.Count(got, "of the image") != n+1 {
			t.Errorf("%s: %q, %v", c.Name, got, err)
		}
	}
	if got, err := read(fourNodes(), p, `{"images":[{"first":[1,1,1],"pull":[1,1,1]}]}`); err == nil {
		t.Errorf("three of four nodes: %s", got)
	}
	if got, err := read(lazyPull(), p, `{"images":[{"checkpoints":[1,2]}]}`); err == nil {
		t.Errorf("two checkpoints: %s", got)
	}
}
