package controller

import (
	"context"
	"errors"
	"fmt"

	authorization "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"berth.dev/berth/internal/slurmjobs/partitions"
	"berth.dev/berth/internal/slurmjobs/trust"
)

// testNodeRights: with the output of 'berth slurm-jobs setup --partition-nodes', a controller shows
// partitions and jobs, but changes no other Nodes.
func testNodeRights(p *fixture) {
	const serving = "system:serviceaccount:nodes:carol"
	nodes := schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	leases := schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	config := p.server.Config(p, serving)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		p.Fatal(err)
	}
	create := func(by dynamic.Interface, resource schema.GroupVersionResource, text string) error {
		object := parse(p, text)
		var to dynamic.ResourceInterface = by.Resource(resource)
		if object.GetNamespace() != "" {
			to = by.Resource(resource).Namespace(object.GetNamespace())
		}
		_, err := to.Create(p.Context(), object, metav1.CreateOptions{})
		return err
	}
	const owned = "annotations: {berth.dev/slurm-jobs: nodes}"
	const taint, noPods = `{key: virtual-kubelet.io/provider, effect: NoSchedule}`, `{allocatable: {pods: "0"}}`
	shownAs := func(name, metadata, taint, status, more string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: %s, %s}, spec: {taints: [%s]%s}, status: %s}", name, metadata, taint, more, status)
	}
	node := func(name, metadata string) string { return shownAs(name, metadata, taint, noPods, "") }
	pod := func(node, image, more string) string {
		return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: theirs, namespace: %s}, spec: {nodeName: "%s", automountServiceAccountToken: false, containers: [{name: a, image: %s}], %s}}`, p.namespace, node, image, more)
	}
	lease := func(name, metadata string) string {
		return fmt.Sprintf("{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: %s, namespace: kube-node-lease, %s}}", name, metadata)
	}
	await(p, "a node of somebody else", func() error { return create(p.client, nodes, node("worker", "")) })
	await(p, "its lease", func() error { return create(p.client, leases, lease("worker", "")) })
	await(p, "a pod of somebody else", func() error { return create(p.client, pods, pod("worker", "busybox", "")) })
	p.createJob("cow")
	setup, err := trust.Trust{Namespace: p.namespace, Users: []string{"alice"}, Controller: serving, PartitionNodes: true}.Setup()
	if err != nil {
		p.Fatal(err)
	}
	p.apply(setup)
	// The API server enforces policies some time after it has accepted them.
	await(p, "the policies in force", func() error {
		if err := create(client, nodes, node("slurm-probe", "")); apierrors.IsForbidden(err) && apierrors.IsForbidden(create(client, pods, pod("", partitions.JobImage, ""))) && create(client, nodes, node("slurm-ours", owned)) == nil {
			return nil
		}
		return errors.Join(p.client.Resource(nodes).Delete(p.Context(), "slurm-probe", metav1.DeleteOptions{}), errors.New("not yet"))
	})
	patch := func(to dynamic.ResourceInterface, text string, subresources ...string) error {
		_, err := to.Patch(p.Context(), "worker", types.MergePatchType, []byte(text), metav1.PatchOptions{}, subresources...)
		return err
	}
	patchOurs := func(text string, subresources ...string) error {
		_, err := client.Resource(nodes).Patch(p.Context(), "slurm-ours", types.MergePatchType, []byte(text), metav1.PatchOptions{}, subresources...)
		return err
	}
	patchPod := func(text string) error {
		_, err := client.Resource(pods).Namespace(p.namespace).Patch(p.Context(), "theirs", types.MergePatchType, []byte(text), metav1.PatchOptions{}, "status")
		return err
	}
	theirs := client.Resource(leases).Namespace(corev1.NamespaceNodeLease)
	for what, err := range map[string]error{
		"taint":        patch(client.Resource(nodes), `{"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}`),
		"take over":    patch(client.Resource(nodes), `{"metadata": {"annotations": {"berth.dev/slurm-jobs": "nodes"}}}`),
		"status":       patch(client.Resource(nodes), `{"status": {"conditions": []}}`, "status"),
		"delete":       client.Resource(nodes).Delete(p.Context(), "worker", metav1.DeleteOptions{}),
		"create":       create(client, nodes, node("slurm-other", "annotations: {berth.dev/slurm-jobs: lab}")),
		"name":         create(client, nodes, node("next-worker", owned)),
		"no taint":     create(client, nodes, shownAs("slurm-a", owned, "", noPods, "")),
		"room":         create(client, nodes, shownAs("slurm-a", owned, taint, `{allocatable: {pods: "9"}}`, "")),
		"default room": create(client, nodes, shownAs("slurm-a", owned, taint, `{capacity: {pods: "9"}}`, "")),
		"podCIDR":      create(client, nodes, shownAs("slurm-a", owned, taint, noPods, ", podCIDR: 10.1.0.0/24")),
		"untaint":      patchOurs(`{"spec": {"taints": []}}`),
		"more room":    patchOurs(`{"status": {"allocatable": {"pods": "9"}}}`, "status"),
		"lease name":   create(client, leases, lease("next-worker", owned)),
		"pod":          create(client, pods, pod("", partitions.JobImage, "")),
		"pod there":    create(client, pods, pod("worker", partitions.JobImage, "")),
		"image":        create(client, pods, pod("slurm-ours", "busybox", "")),
		"init":         create(client, pods, pod("slurm-ours", partitions.JobImage, "initContainers: [{name: b, image: busybox}]")),
		"secret":       create(client, pods, pod("slurm-ours", partitions.JobImage, "volumes: [{name: a, secret: {secretName: a}}]")),
		"delete pod":   client.Resource(pods).Namespace(p.namespace).Delete(p.Context(), "theirs", metav1.DeleteOptions{}),
		"pod status":   patchPod(`{"status": {"phase": "Failed"}}`),
		"renew":        patch(theirs, `{"spec": {"holderIdentity": "x"}}`),
		"create lease": create(client, leases, lease("slurm-probe", "")),
	} {
		if !apierrors.IsForbidden(err) {
			p.Errorf("%s: %v", what, err)
		}
	}
	p.testUserRights()
	// The rights suffice.
	shown := partitions.Default()
	shown.Config, shown.Namespace, shown.Owner, shown.Host = config, p.namespace, p.namespace, "carol"
	shown.Ask = func(context.Context, ...string) ([]byte, error) {
		return []byte("debug up infinite 1-infinite 2 8 16000 4000 4/12/0/16\n"), nil
	}
	server, err := partitions.New(shown)
	if err != nil {
		p.Fatal(err)
	}
	if err := server.Check(p.Context()); err != nil {
		p.Error(err)
	}
	options := p.options(config)
	options.Beside, options.Changed, options.PodProblem = server.Run, server.Changed, server.Problem
	c, err := New(options)
	if err != nil {
		p.Fatal(err)
	}
	server.Jobs = partitions.Jobs{Object: c.Object, All: c.References}
	p.start(c)
	await(p, "a pod that runs", func() error {
		pod, err := p.client.Resource(pods).Namespace(p.namespace).Get(p.Context(), "cow-job", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if phase, _, _ := unstructured.NestedString(pod.Object, "status", "phase"); phase != "Running" {
			return fmt.Errorf("it is %s", phase)
		}
		return nil
	})
	await(p, "a lease", func() error {
		_, err := p.client.Resource(leases).Namespace(corev1.NamespaceNodeLease).Get(p.Context(), "slurm-carol-debug", metav1.GetOptions{})
		return err
	})
	shownNode, err := p.client.Resource(nodes).Get(p.Context(), "slurm-carol-debug", metav1.GetOptions{})
	if err != nil {
		p.Fatal(err)
	}
	if room, _, _ := unstructured.NestedString(shownNode.Object, "status", "allocatable", "pods"); room != "0" {
		p.Errorf("the scheduler may bind %s pods of other namespaces", room)
	}
}

// testUserRights: the users may read the pods of the namespace, all their logs, and nothing elsewhere.
func (p *fixture) testUserRights() {
	p.Helper()
	client, err := kubernetes.NewForConfig(p.server.Config(p, "alice"))
	if err != nil {
		p.Fatal(err)
	}
	for _, test := range []struct {
		namespace, verb, subresource string
		want                         bool
	}{
		{p.namespace, "get", "", true}, {p.namespace, "list", "", true}, {p.namespace, "get", "log", true},
		{p.namespace, "delete", "", false}, {p.namespace, "create", "exec", false}, {"default", "get", "log", false},
	} {
		review := &authorization.SelfSubjectAccessReview{Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorization.ResourceAttributes{
			Namespace: test.namespace, Verb: test.verb, Resource: "pods", Subresource: test.subresource,
		}}}
		review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(p.Context(), review, metav1.CreateOptions{})
		if err != nil || review.Status.Allowed != test.want {
			p.Errorf("%+v: got %+v, %v", test, review.Status, err)
		}
	}
}
