package node

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/kubelet/events"

	"berth.dev/berth/internal/base/cluster"
)

func TestLongPullsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		said := record.NewFakeRecorder(100)
		of, all := int64(0), int64(0)
		p := newPullReports(ctx, said, func() (int64, int64) { return of, all })
		container := func(name string) *v1.ObjectReference {
			return &v1.ObjectReference{Name: "pod", UID: "1", FieldPath: "spec.containers{" + name + "}"}
		}
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			for _, text := range want {
				select {
				case got := <-said.Events:
					if !strings.HasPrefix(got, "Normal "+text) {
						t.Errorf("%q, not %q", got, text)
					}
				default:
					t.Errorf("nothing, not %q", text)
				}
			}
			if len(said.Events) > 0 {
				t.Errorf("%q beyond what was expected", <-said.Events)
			}
		}
		p.Event(container("quick"), v1.EventTypeNormal, events.PullingImage, `Pulling image "small"`)
		p.Event(container("slow"), v1.EventTypeNormal, events.PullingImage, `Pulling image "big"`)
		p.Event(container("quick"), v1.EventTypeNormal, events.PulledImage, "Successfully pulled")
		expect(`Pulling Pulling image "small"`, `Pulling Pulling image "big"`, "Pulled Successfully pulled")
		progress := cluster.PullProgress + ` Pulling image "big" for `
		time.Sleep(5 * time.Second)
		expect(progress + "5 s: the registry has yet to answer")
		of, all = 1_500_000, 30_000_000
		time.Sleep(10 * time.Second)
		expect(progress + "15 s: 1.5 of 30.0 MB")
		time.Sleep(20 * time.Second)
		expect(progress + "35 s: ")
		p.Event(container("slow"), v1.EventTypeWarning, events.FailedToPullImage, "no")
		time.Sleep(time.Hour)
		if got := <-said.Events; got != "Warning Failed no" {
			t.Errorf("the end: %q", got)
		}
		expect()
	})
}
