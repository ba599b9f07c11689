package workload

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/base/cluster"
)

// pullReports passes on what nodes say of pulls that take long: for each image
// that of one pod at a time, as many may wait for it.
type pullReports struct {
	since    time.Time // what was said before is another run's
	progress func(string)
	// pods holds the pods that have been reported to wait for an image, by the
	// image's name.
	pods map[string]types.UID
}

func newPullReports(since time.Time, progress func(string)) *pullReports {
	return &pullReports{since, progress, map[string]types.UID{}}
}

func (p *pullReports) handle(event *corev1.Event) {
	pod := event.InvolvedObject.UID
	if event.Reason != cluster.PullProgress {
		for image, reported := range p.pods {
			if reported == pod {
				delete(p.pods, image) // it has ended, or failed
			}
		}
		return
	}
	_, rest, _ := strings.Cut(event.Message, `"`)
	image, _, _ := strings.Cut(rest, `"`)
	if event.LastTimestamp.Time.Before(p.since) || p.pods[image] != "" && p.pods[image] != pod {
		return
	}
	p.pods[image] = pod
	p.progress(fmt.Sprintf("%s, for pod %s on %s", event.Message, event.InvolvedObject.Name, event.Source.Host))
}
