package workload

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/base/cluster"
)

func TestPullsAreReportedOncePerImage(t *testing.T) {
	began := time.Now()
	var reported []string
	p := newPullReports(began, func(text string) { reported = append(reported, text) })
	say := func(pod, reason, message string, at time.Time) {
		p.handle(&corev1.Event{
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: pod, UID: types.UID(pod)},
			Reason:         reason, Message: message, LastTimestamp: metav1.NewTime(at), Source: corev1.EventSource{Host: "n1"},
		})
	}
	later := began.Add(time.Second)
	say("old", cluster.PullProgress, `Pulling image "big:1" for 5 s: x`, began.Add(-time.Minute))
	say("a", "Pulling", `Pulling image "big:1"`, later)
	say("a", cluster.PullProgress, `Pulling image "big:1" for 5 s: x`, later)
	say("b", cluster.PullProgress, `Pulling image "big:1" for 5 s: y`, later)
	say("b", cluster.PullProgress, `Pulling image "other" for 5 s: y`, later)
	say("a", cluster.PullProgress, `Pulling image "big:1" for 15 s: x`, later)
	say("a", "Pulled", `Successfully pulled image "big:1"`, later)
	say("c", cluster.PullProgress, `Pulling image "big:1" for 5 s: z`, later)
	if want := []string{
		`Pulling image "big:1" for 5 s: x, for pod a on n1`, `Pulling image "other" for 5 s: y, for pod b on n1`,
		`Pulling image "big:1" for 15 s: x, for pod a on n1`, `Pulling image "big:1" for 5 s: z, for pod c on n1`,
	}; !slices.Equal(reported, want) {
		t.Errorf("reported %q, not %q", reported, want)
	}
}
