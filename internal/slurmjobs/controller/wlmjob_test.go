package controller

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth.dev/berth/internal/slurmjobs/kinds"
)

// testWlmJob follows a WlmJob to its end, and another one that is corrected after a rejection.
func testWlmJob(p *fixture) {
	p.serve()
	object := p.create(`
apiVersion: wlm.sylabs.io/v1alpha1
kind: WlmJob
metadata: {name: cow}
spec:
  image: library://sylabsed/examples/lolcow
  options: {writable: true, binds: ["/data:/data:ro"]}
  resources: {nodes: 1, cpuPerNode: 1, memPerNode: 512, wallTime: 60}
  nodeSelector: {wlm.sylabs.io/cuda: 10}
`)
	p.awaitStatus(object, func(s kinds.Status) bool { return s.State == "RUNNING" && s.Status == "Running" && s.JobID != "" })
	await(p, "warnings", func() error {
		events, err := p.client.Resource(eventsResource).Namespace(p.namespace).List(p.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var warnings []string
		for _, event := range events.Items {
			if event.Object["type"] == "Warning" && event.Object["reason"] == "Differs" {
				warnings = append(warnings, event.Object["message"].(string))
			}
		}
		if all := strings.Join(warnings, "\n"); len(warnings) != 2 || !strings.Contains(all, "berth checks no signatures") || !strings.Contains(all, "spec.options.writable") {
			return fmt.Errorf("got %q", warnings)
		}
		return nil
	})
	p.patch(object, `{"metadata": {"labels": {"a": "b"}}}`)
	p.delete(object)
	p.awaitCancelled(object)

	refused := p.create(`{apiVersion: wlm.sylabs.io/v1alpha1, kind: WlmJob, metadata: {name: app}, spec: {image: "shub://a", options: {app: foo}}}`)
	status := p.awaitStatus(refused, state(kinds.Rejected))
	if status.Status != "Failed" || !strings.Contains(status.Message, "no images of shub://") || !strings.Contains(status.Message, "spec.options.app") {
		p.Errorf("got %+v", status)
	}
	p.patch(refused, `{"spec": {"image": "/apps/a.sif", "options": null}}`)
	p.awaitStatus(refused, state("RUNNING"))
}
