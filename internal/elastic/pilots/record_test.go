package pilots

import (
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/elastic/plan"
	"berth.dev/berth/internal/job/slurm"
)

func TestRecordIsReadAsWritten(t *testing.T) {
	want := record{
		UID:     "pilot-7-x",
		Request: plan.Request{Options: []string{"--partition=long"}, GPUType: "a100", Nodes: 2, Size: plan.Size{MilliCPU: 1000, Memory: 1 << 30, Pods: 250}, Only: "gang ns/g"},
		status:  status{Job: "21", Released: true, Joined: true, Leaving: true, State: slurm.Running, Reason: "Resources", Start: "2026-11-29T10:40", Hosts: "n[1-2]"},
	}
	object, err := want.configMap("7")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := readRecord(object); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, got %+v, want %+v", err, got, want)
	}
}

// TestForeignRecords checks that the loop deletes records that no loop of this cluster has written.
// Commands of Slurm get words of records.
func TestForeignRecords(t *testing.T) {
	request := func(options ...string) plan.Request { return plan.Request{Options: options, Nodes: 1} }
	for _, c := range []struct {
		name, of string
		record
		want int
	}{
		{"its own", "7", record{UID: "pilot-7-x", Request: request("--partition=long"), status: status{Job: "21"}}, 1},
		{"not submitted", "7", record{UID: "pilot-7-x", Request: request()}, 1},
		{"an earlier cluster", "6", record{UID: "pilot-6-x", Request: request()}, 0},
		{"another name", "7", record{UID: "settings", Request: request()}, 0},
		{"a name of another cluster", "7", record{UID: "pilot-8-x", Request: request()}, 0},
		{"an option as number", "7", record{UID: "pilot-7-x", Request: request(), status: status{Job: "--user=alice", Leaving: true}}, 0},
		{"an option that no pod may use", "7", record{UID: "pilot-7-x", Request: request("--uid=root")}, 0},
	} {
		object, err := c.configMap(c.of)
		if err != nil {
			t.Fatal(err)
		}
		l := newTestLoop(&slurmStub{})
		l.core = fake.NewClientset(object).CoreV1()
		if err := l.load(t.Context()); err != nil {
			t.Fatal(err)
		}
		left, err := l.core.ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(left.Items) != 1+c.want || len(l.pilots) != c.want {
			t.Errorf("%s: %d pilots, %d objects, %v; want %d pilots, and as many objects beside %s", c.name, len(l.pilots), len(left.Items), err, c.want, cluster.ElasticName)
		}
	}
}
