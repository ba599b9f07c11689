package controller

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"berth.dev/berth/internal/slurmjobs/partitions"
	"berth.dev/berth/internal/slurmjobs/trust"
)

// testNodeRights: with the output of 'berth slurm-jobs setup --partition-nodes', a controller shows
// partitions and jobs, but changes no other Nodes.
func testNodeRights(p *fixture) {
	const serving = "system:serviceaccount:nodes:carol"
	nodes := schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	leases := schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	config := p.server.Config(p, serving)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		p.Fatal(err)
	}
	create := func(by dynamic.Interface, resource schema.GroupVersionResource, text string) error {
		object := parse(p, text)
		var to dynamic.ResourceInterface = by.Resource(resource)
		if resource == leases {
			to = by.Resource(resource).Namespace(corev1.NamespaceNodeLease)
		}
		_, err := to.Create(p.Context(), object, metav1.CreateOptions{})
		return err
	}
	const owned = "annotations: {berth.dev/slurm-jobs: nodes}"
	node := func(name, metadata string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: %s, %s}}", name, metadata)
	}
	lease := func(name, metadata string) string {
		return fmt.Sprintf("{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: %s, namespace: kube-node-lease, %s}}", name, metadata)
	}
	await(p, "a node of somebody else", func() error { return create(p.client, nodes, node("worker", "")) })
	await(p, "its lease", func() error { return create(p.client, leases, lease("worker", "")) })
	p.createJob("cow")
	setup, err := trust.Trust{Namespace: p.namespace, Controller: serving, PartitionNodes: true}.Setup()
	if err != nil {
		p.Fatal(err)
	}
	p.apply(setup)
	// The API server enforces a policy some time after it has accepted it.
	await(p, "the policy in force", func() error {
		if err := create(client, nodes, node("probe", "")); apierrors.IsForbidden(err) && create(client, nodes, node("ours", owned)) == nil {
			return nil
		}
		return errors.Join(p.client.Resource(nodes).Delete(p.Context(), "probe", metav1.DeleteOptions{}), errors.New("not yet"))
	})
	patch := func(to dynamic.ResourceInterface, text string, subresources ...string) error {
		_, err := to.Patch(p.Context(), "worker", types.MergePatchType, []byte(text), metav1.PatchOptions{}, subresources...)
		return err
	}
	theirs := client.Resource(leases).Namespace(corev1.NamespaceNodeLease)
	for what, err := range map[string]error{
		"taint":        patch(client.Resource(nodes), `{"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}`),
		"take over":    patch(client.Resource(nodes), `{"metadata": {"annotations": {"berth.dev/slurm-jobs": "nodes"}}}`),
		"status":       patch(client.Resource(nodes), `{"status": {"conditions": []}}`, "status"),
		"delete":       client.Resource(nodes).Delete(p.Context(), "worker", metav1.DeleteOptions{}),
		"create":       create(client, nodes, node("other", "annotations: {berth.dev/slurm-jobs: lab}")),
		"renew":        patch(theirs, `{"spec": {"holderIdentity": "x"}}`),
		"create lease": create(client, leases, lease("probe", "")),
	} {
		if !apierrors.IsForbidden(err) {
			p.Errorf("%s: %v", what, err)
		}
	}
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
	pods := p.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace(p.namespace)
	await(p, "a pod that runs", func() error {
		pod, err := pods.Get(p.Context(), "cow-job", metav1.GetOptions{})
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
