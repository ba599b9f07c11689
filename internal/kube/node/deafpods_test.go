package node

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestPodsWithoutConnectionAreReplaced(t *testing.T) {
	pod := func(name, address string, hostNetwork bool) *v1.Pod {
		return &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: "1"},
			Spec:       v1.PodSpec{NodeName: "n1", HostNetwork: hostNetwork},
			Status:     v1.PodStatus{Phase: v1.PodRunning, PodIP: address},
		}
	}
	ended := pod("ended", "100.64.0.2", false)
	ended.Status.Phase = v1.PodSucceeded
	client := fake.NewClientset(pod("lost", "100.64.0.2", false), pod("well", "100.64.0.3", false), pod("host", "100.64.0.2", true), ended)
	d := deafPods{node: "n1", client: client, log: slog.New(slog.DiscardHandler)}
	d.replace(t.Context(), []netip.Addr{netip.MustParseAddr("100.64.0.2"), netip.MustParseAddr("100.64.0.9")})

	var deleted, patched []string
	for _, action := range client.Actions() {
		switch a := action.(type) {
		case interface{ GetPatch() []byte }:
			patched = append(patched, string(a.GetPatch()))
		case interface{ GetName() string }:
			if action.GetVerb() == "delete" {
				deleted = append(deleted, a.GetName())
			}
		}
	}
	if len(deleted) != 1 || deleted[0] != "lost" {
		t.Errorf("deleted %v", deleted)
	}
	if len(patched) != 1 || !strings.Contains(patched[0], string(v1.DisruptionTarget)) {
		t.Errorf("patched %v", patched)
	}
	events, err := client.CoreV1().Events("a").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(events.Items) != 1 || events.Items[0].Reason != reasonFastPathLost || events.Items[0].InvolvedObject.Name != "lost" {
		t.Errorf("events %v, %v", events, err)
	}
}
