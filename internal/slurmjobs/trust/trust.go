// Package trust decides who may have jobs submitted: whoever creates an object in a served
// namespace runs code as the user of the controller. It makes the policy and the roles that
// an administrator installs, and checks that the policy is in force. The API server
// enforces it.
package trust

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"berth.dev/berth/internal/slurmjobs/kinds"
)

// Trust names who may have jobs submitted in a namespace.
type Trust struct {
	Namespace string
	// Users are names of users of the cluster, such as alice or
	// system:serviceaccount:ci:runner. Without users, everybody who may create objects in
	// the namespace is trusted.
	Users []string
	// Controller is the name of the user of the cluster that the controller is.
	Controller string
	// Settle is the time from the creation of the policy until it is surely in force.
	// Zero means Settle. Tests shorten it.
	Settle time.Duration
}

// Settle is the default of Trust.Settle. API servers read their policies again about once
// in a second, and their clocks differ.
const Settle = time.Minute

const admission = "admissionregistration.k8s.io"

var (
	policies = schema.GroupVersionResource{Group: admission, Version: "v1", Resource: "validatingadmissionpolicies"}
	bindings = schema.GroupVersionResource{Group: admission, Version: "v1", Resource: "validatingadmissionpolicybindings"}
	selves   = schema.GroupVersionResource{Group: "authentication.k8s.io", Version: "v1", Resource: "selfsubjectreviews"}
)

// name names the policy. Each list of users has its own policy. The age of the
// policy bounds the age of objects by other users.
func (t Trust) name() string {
	sum := sha256.Sum256([]byte(strings.Join(append(slices.Sorted(slices.Values(t.Users)), t.Controller), "\n")))
	return "berth-slurm-jobs-" + t.Namespace + "-" + hex.EncodeToString(sum[:4])
}

type object = map[string]any

func list[T any](values ...T) []any {
	all := []any{}
	for _, value := range values {
		all = append(all, value)
	}
	return all
}

// policy refuses objects of other users. Everybody may change what is no part of the spec,
// within the limits of roles; only the controller and the users may write statuses. Not
// even the controller may change specs.
func (t Trust) policy() object {
	quoted := []string{}
	for _, user := range slices.Sorted(slices.Values(t.Users)) {
		quoted = append(quoted, strconv.QuoteToASCII(user))
	}
	rules := []any{}
	for _, group := range []string{kinds.BridgeJob.Group, kinds.SlurmJob.Group} {
		resources := []any{}
		for _, kind := range kinds.All() {
			if kind.Group == group {
				resources = append(resources, kind.Plural, kind.Plural+"/*")
			}
		}
		rules = append(rules, object{
			"apiGroups": list(group), "apiVersions": list("*"), "resources": resources,
			"operations": list("CREATE", "UPDATE"), "scope": "*",
		})
	}
	return object{
		"failurePolicy": "Fail",
		"matchConstraints": object{
			"matchPolicy": "Equivalent", "namespaceSelector": object{}, "objectSelector": object{}, "resourceRules": rules,
		},
		"validations": list(object{
			"expression": fmt.Sprintf(`request.userInfo.username in [%s] || request.operation == "UPDATE" && (has(request.subResource) ? request.subResource == "status" && request.userInfo.username == %s : object.spec == oldObject.spec)`,
				strings.Join(quoted, ", "), strconv.QuoteToASCII(t.Controller)),
			"message": "objects of this namespace become Slurm jobs of another user, who does not trust you: ask the user who runs 'berth slurm-jobs' to add you to --allow-users",
			"reason":  "Forbidden",
		}),
	}
}

func (t Trust) binding() object {
	return object{
		"policyName": t.name(),
		"matchResources": object{
			"matchPolicy": "Equivalent", "objectSelector": object{},
			"namespaceSelector": object{"matchLabels": object{"kubernetes.io/metadata.name": t.Namespace}},
		},
		"validationActions": list("Deny"),
	}
}

func rule(group string, resources []any, verbs ...string) any {
	return object{"apiGroups": list(group), "resources": resources, "verbs": list(verbs...)}
}

// Setup returns what the administrator of a cluster applies for a controller: the kinds,
// the policy, and the roles of the controller and of the users. It is YAML.
func (t Trust) Setup() (string, error) {
	text, err := kinds.DefinitionsYAML()
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	out.WriteString(text)
	for _, object := range t.objects() {
		text, err := yaml.Marshal(object)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "---\n%s", text)
	}
	return out.String(), nil
}

func (t Trust) objects() []object {
	const roles, all = "rbac.authorization.k8s.io", "berth-slurm-jobs"
	make := func(api, kind, name, namespace string, fields object) object {
		metadata := object{"name": name}
		if namespace != "" {
			metadata["namespace"] = namespace
		}
		made := object{"apiVersion": api, "kind": kind, "metadata": metadata}
		for name, value := range fields {
			made[name] = value
		}
		return made
	}
	bind := func(kind, role, name, namespace string, users ...string) object {
		subjects := []any{}
		for _, user := range users {
			subjects = append(subjects, object{"apiGroup": roles, "kind": "User", "name": user})
		}
		return make(roles+"/v1", kind+"Binding", name, namespace, object{
			"roleRef": object{"apiGroup": roles, "kind": kind, "name": role}, "subjects": subjects,
		})
	}
	bridge := []any{kinds.BridgeJob.Plural}
	wlm := []any{kinds.SlurmJob.Plural, kinds.WlmJob.Plural}
	made := []object{
		make(roles+"/v1", "Role", all, t.Namespace, object{"rules": list(
			rule(kinds.BridgeJob.Group, list(kinds.BridgeJob.Plural, kinds.BridgeJob.Plural+"/status"), "get", "list", "watch", "patch"),
			rule(kinds.SlurmJob.Group, list(kinds.SlurmJob.Plural, kinds.SlurmJob.Plural+"/status", kinds.WlmJob.Plural, kinds.WlmJob.Plural+"/status"), "get", "list", "watch", "patch"),
			rule("", list("events"), "create", "patch"),
			rule("coordination.k8s.io", list("leases"), "get", "create", "update"),
		)}),
		bind("Role", all, all, t.Namespace, t.Controller),
	}
	if len(t.Users) == 0 {
		return made
	}
	users := append(slices.Clone(t.Users), t.Controller)
	return append(made,
		make(admission+"/v1", "ValidatingAdmissionPolicy", t.name(), "", object{"spec": t.policy()}),
		make(admission+"/v1", "ValidatingAdmissionPolicyBinding", t.name(), "", object{"spec": t.binding()}),
		make(roles+"/v1", "ClusterRole", t.name(), "", object{"rules": list(object{
			"apiGroups": list(admission), "resources": list(policies.Resource, bindings.Resource), "resourceNames": list(t.name()), "verbs": list("get"),
		})}),
		bind("ClusterRole", t.name(), t.name(), "", t.Controller),
		make(roles+"/v1", "Role", all+"-users", t.Namespace, object{"rules": list(
			rule(kinds.BridgeJob.Group, bridge, "create", "delete", "get", "list", "patch", "update", "watch"),
			rule(kinds.SlurmJob.Group, wlm, "create", "delete", "get", "list", "patch", "update", "watch"),
			rule("", list("events"), "get", "list", "watch"),
		)}),
		bind("Role", all+"-users", all+"-users", t.Namespace, users[:len(t.Users)]...),
	)
}

// Self returns the name of the user of the cluster that a client is.
func Self(ctx context.Context, client dynamic.Interface) (string, error) {
	review := &unstructured.Unstructured{Object: object{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}}
	review, err := client.Resource(selves).Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("ask the API server for the name of this user: %w", err)
	}
	name, _, err := unstructured.NestedString(review.Object, "status", "userInfo", "username")
	return name, err
}

// Check returns the time of the policy. API servers admit only objects of the users soon
// after it. Its error contains the remedy.
func (t Trust) Check(ctx context.Context, client dynamic.Interface) (since time.Time, err error) {
	const remedy = "have the cluster's administrator apply the output of 'berth slurm-jobs setup' with the same --namespace, --allow-users and --user %s"
	for resource, want := range map[schema.GroupVersionResource]object{policies: t.policy(), bindings: t.binding()} {
		had, err := client.Resource(resource).Get(ctx, t.name(), metav1.GetOptions{})
		if err != nil {
			return time.Time{}, fmt.Errorf("read the policy that admits only objects of --allow-users: %w: "+remedy, err, t.Controller)
		}
		if !equal(had.Object["spec"], want) {
			return time.Time{}, fmt.Errorf("%s %s was changed: "+remedy, had.GetKind(), t.name(), t.Controller)
		}
		if had.GetGeneration() != 1 {
			// Its time says nothing about objects from before the last change.
			return time.Time{}, fmt.Errorf("%s %s was changed since it was created, and could have admitted anybody's objects meanwhile: have the cluster's administrator delete it, and apply the output of 'berth slurm-jobs setup' again",
				had.GetKind(), t.name())
		}
		if created := had.GetCreationTimestamp().Time; created.After(since) {
			since = created
		}
	}
	return since, nil
}

func equal(a, b any) bool {
	var values [2]any
	for i, value := range []any{a, b} {
		text, err := json.Marshal(value)
		if err != nil || json.Unmarshal(text, &values[i]) != nil {
			return false
		}
	}
	return reflect.DeepEqual(values[0], values[1])
}

// ErrForbidden is wrapped by errors that last until the object changes.
var ErrForbidden = errors.New("not permitted")

// checkAgain is the lifetime of the permission for an object that waits for its job.
const checkAgain = 10 * time.Minute

// Allow returns the check of objects for a controller. Objects that are older than the
// policy could be anybody's, and are refused.
func (t Trust) Allow(client dynamic.Interface) func(context.Context, *unstructured.Unstructured) error {
	settle := t.Settle
	if settle == 0 {
		settle = Settle
	}
	type spec struct {
		uid        types.UID
		generation int64
	}
	var mu sync.Mutex
	permitted := map[spec]bool{}
	var began time.Time
	return func(ctx context.Context, object *unstructured.Unstructured) error {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(began) > checkAgain {
			clear(permitted)
			began = time.Now()
		}
		this := spec{object.GetUID(), object.GetGeneration()}
		if permitted[this] {
			return nil
		}
		since, err := t.Check(ctx, client)
		if err != nil {
			return err
		}
		if since = since.Add(settle); !object.GetCreationTimestamp().After(since) {
			return fmt.Errorf("%w: it was created before the policy that admits only objects of --allow-users was surely in force: delete it, and create it again after %s",
				ErrForbidden, since.UTC().Format(time.RFC3339))
		}
		permitted[this] = true
		return nil
	}
}
