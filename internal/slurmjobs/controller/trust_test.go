package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"berth.dev/berth/internal/slurmjobs/kinds"
	"berth.dev/berth/internal/slurmjobs/trust"
)

// testTrust applies the output of 'berth slurm-jobs setup', and tries what users may do then.
// alice is trusted; mallory is not, but has the rights of an editor.
func testTrust(p *fixture) {
	const serving, trusted, other = "carol", "alice", "mallory"
	client := func(user string) dynamic.Interface {
		client, err := dynamic.NewForConfig(p.server.Config(p, user))
		if err != nil {
			p.Fatal(err)
		}
		return client
	}
	policy := trust.Trust{Namespace: p.namespace, Users: []string{trusted}, Controller: serving, Secrets: []string{"s3"}, Settle: 1}
	if _, err := policy.Check(p.Context(), client(serving)); err == nil || !strings.Contains(err.Error(), "berth slurm-jobs setup") {
		p.Errorf("before the setup: %v", err)
	}
	old := p.createJob("old")
	setup, err := policy.Setup()
	if err != nil {
		p.Fatal(err)
	}
	p.apply(setup)
	p.apply(editorOf(p.namespace, other))
	await(p, "the policy", func() error {
		_, err := policy.Check(p.Context(), client(serving))
		return err
	})
	if name, err := trust.Self(p.Context(), client(serving)); err != nil || name != serving {
		p.Errorf("got %q, %v", name, err)
	}
	create := func(user, name string) error {
		_, err := client(user).Resource(kinds.SlurmJob.Resource()).Namespace(p.namespace).Create(p.Context(), parse(p, fmt.Sprintf(slurmJob, name)), metav1.CreateOptions{})
		return err
	}
	patch := func(user, text string, subresources ...string) error {
		_, err := client(user).Resource(kinds.SlurmJob.Resource()).Namespace(p.namespace).Patch(p.Context(), "ours", types.MergePatchType, []byte(text), metav1.PatchOptions{}, subresources...)
		return err
	}
	denied := func(what string, err error) {
		p.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "who does not trust you") {
			p.Errorf("%s: %v", what, err)
		}
	}
	// The API server enforces a policy some time after it has accepted it.
	await(p, "the policy in force", func() error {
		if err := create(other, "probe"); err == nil {
			_ = p.objects(kinds.SlurmJob).Delete(p.Context(), "probe", metav1.DeleteOptions{})
			return fmt.Errorf("mallory creates objects")
		}
		return nil
	})
	denied("create", create(other, "theirs"))
	await(p, "an object that is newer than the policy", func() error {
		if err := create(trusted, "ours"); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		object, err := p.objects(kinds.SlurmJob).Get(p.Context(), "ours", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := policy.Allow(client(serving))(p.Context(), object); err != nil {
			_ = p.objects(kinds.SlurmJob).Delete(p.Context(), "ours", metav1.DeleteOptions{})
			return err
		}
		return nil
	})
	settling := policy
	settling.Settle = 0
	ours, err := p.objects(kinds.SlurmJob).Get(p.Context(), "ours", metav1.GetOptions{})
	if err != nil {
		p.Fatal(err)
	}
	if err := settling.Allow(client(serving))(p.Context(), ours); !errors.Is(err, trust.ErrForbidden) || !strings.Contains(err.Error(), "create it again after ") {
		p.Errorf("within a minute of the policy: %v", err)
	}
	denied("edit by the controller", patch(serving, `{"spec": {"batch": "#!/bin/sh\nsteal"}}`))
	denied("edit", patch(other, `{"spec": {"batch": "#!/bin/sh\nsteal"}}`))
	denied("status", patch(other, `{"status": {"jobID": "1"}}`, "status"))
	denied("selector", patch(other, `{"spec": {"nodeSelector": {"wlm.sylabs.io/partition": "x"}}}`))
	if err := patch(other, `{"metadata": {"labels": {"a": "b"}}}`); err != nil {
		p.Errorf("a label: %v", err)
	}
	p.testMissingRights()
	p.testSecrets(client(serving))
	// The controller has the rights that it needs, and rejects an object older than the policy.
	options := p.options(p.server.Config(p, serving))
	options.Allow = policy.Allow(client(serving))
	allow := policy.Allow(client(serving))
	if err := allow(p.Context(), ours); err != nil {
		p.Error(err)
	}
	p.run(options)
	p.awaitStatus(ours, state("RUNNING"))
	if status := p.awaitStatus(old, state(kinds.Rejected)); !strings.Contains(status.Message, "delete it, and create it again") || len(p.slurm.of(string(old.GetUID()))) != 0 {
		p.Errorf("got %+v", status)
	}
	// Check refuses a weakened policy.
	weaken := map[string]any{"spec": map[string]any{"validationActions": []string{"Audit"}}}
	p.patchPolicy(policy, weaken)
	await(p, "the weakened policy", func() error {
		_, err := policy.Check(p.Context(), client(serving))
		if err == nil {
			return errors.New("it passes")
		}
		if !strings.Contains(err.Error(), "was changed: ") {
			return err
		}
		return create(other, "slipped")
	})
	slipped, err := p.objects(kinds.SlurmJob).Get(p.Context(), "slipped", metav1.GetOptions{})
	if err != nil {
		p.Fatal(err)
	}
	if err := allow(p.Context(), slipped); err == nil {
		p.Error("an object is permitted while the policy admits anybody's")
	}
	// Nor is one that was weakened and mended: it stays as old as it was.
	p.patchPolicy(policy, map[string]any{"spec": map[string]any{"validationActions": []string{"Deny"}}})
	if err := allow(p.Context(), slipped); err == nil || !strings.Contains(err.Error(), "delete it, and apply") {
		p.Errorf("after the repair: %v", err)
	}
}

// testMissingRights: a controller that may only read reports it once.
func (p *fixture) testMissingRights() {
	p.Helper()
	p.apply(fmt.Sprintf(`apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: %[1]s}
rules:
- {apiGroups: [wlm.sylabs.io, bridgejob.ibm.com], resources: ["*"], verbs: [get, list, watch]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: reader}]
`, p.namespace))
	config := p.server.Config(p, "reader")
	reader, err := dynamic.NewForConfig(config)
	if err != nil {
		p.Fatal(err)
	}
	// A role is in force some time after it was accepted.
	await(p, "the role", func() error { return CheckDefinitions(p.Context(), reader, p.namespace) })
	log := &lockedBuffer{}
	options := p.options(config)
	options.LeaseNamespace, options.Log = p.namespace, slog.New(slog.NewTextHandler(log, nil))
	stop := p.run(options)
	await(p, "a warning", func() error {
		if !strings.Contains(log.String(), "level=WARN") {
			return errors.New("there is none")
		}
		return nil
	})
	stop()
	if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "berth slurm-jobs setup") {
		p.Errorf("got %s", text)
	}
}

// patchPolicy changes the binding of the policy.
func (p *fixture) patchPolicy(policy trust.Trust, change map[string]any) {
	p.Helper()
	text, err := json.Marshal(change)
	if err != nil {
		p.Fatal(err)
	}
	bindings := p.client.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"})
	all, err := bindings.List(p.Context(), metav1.ListOptions{})
	if err != nil {
		p.Fatal(err)
	}
	for _, binding := range all.Items {
		if strings.HasPrefix(binding.GetName(), "berth-slurm-jobs-"+policy.Namespace+"-") {
			if _, err := bindings.Patch(p.Context(), binding.GetName(), types.MergePatchType, text, metav1.PatchOptions{}); err != nil {
				p.Fatal(err)
			}
		}
	}
}

// apply applies manifests as the administrator.
func (p *fixture) apply(manifests string) {
	p.Helper()
	for text := range strings.SplitSeq(manifests, "---\n") {
		object := parse(p, text)
		plural := map[string]string{
			"CustomResourceDefinition": "customresourcedefinitions", "Role": "roles", "RoleBinding": "rolebindings", "ClusterRole": "clusterroles",
			"ClusterRoleBinding": "clusterrolebindings", "ValidatingAdmissionPolicy": "validatingadmissionpolicies", "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
		}[object.GetKind()]
		version := object.GroupVersionKind().GroupVersion()
		var resource dynamic.ResourceInterface = p.client.Resource(version.WithResource(plural))
		if object.GetNamespace() != "" {
			resource = p.client.Resource(version.WithResource(plural)).Namespace(object.GetNamespace())
		}
		text, err := json.Marshal(object)
		if err != nil {
			p.Fatal(err)
		}
		force := true
		if _, err := resource.Patch(p.Context(), object.GetName(), types.ApplyPatchType, text, metav1.PatchOptions{FieldManager: "setup", Force: &force}); err != nil {
			p.Fatalf("apply %s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}

// editorOf binds the role of an editor of all three kinds to a user.
func editorOf(namespace, user string) string {
	return fmt.Sprintf(`apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: editor, namespace: %[1]s}
rules:
- {apiGroups: [wlm.sylabs.io, bridgejob.ibm.com], resources: ["*"], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: editor, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: editor}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[2]s}]
`, namespace, user)
}

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(text)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// testSecrets: the controller may read the Secrets of the setup, and no other.
func (p *fixture) testSecrets(client dynamic.Interface) {
	secrets := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	for name, permitted := range map[string]bool{"s3": true, "other": false} {
		secret := parse(p, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: %s}}", name))
		if _, err := p.client.Resource(secrets).Namespace(p.namespace).Create(p.Context(), secret, metav1.CreateOptions{}); err != nil {
			p.Fatal(err)
		}
		if _, err := client.Resource(secrets).Namespace(p.namespace).Get(p.Context(), name, metav1.GetOptions{}); (err == nil) != permitted {
			p.Errorf("%s: %v", name, err)
		}
	}
	if _, err := client.Resource(secrets).Namespace(p.namespace).List(p.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		p.Errorf("list: %v", err)
	}
}
