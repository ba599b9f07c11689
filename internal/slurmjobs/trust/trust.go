// Package trust decides whose objects become jobs: whoever creates an object in a served
// namespace runs code as the user of the controller. The package generates the admission policy
// and the roles that an administrator installs, and checks that the policy is installed
// unchanged. The API server enforces the policy.
package trust

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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

// Trust names the users of a Kubernetes cluster who may create objects in a namespace.
type Trust struct {
	Namespace string
	// Users holds user names of the cluster, such as alice or
	// system:serviceaccount:ci:runner. If it is empty, everybody who may create objects in
	// the namespace is trusted, and there is no policy.
	Users []string
	// Controller is the controller's own user name in the cluster.
	Controller string
	// Results permits the controller to create pods, which collect results of jobs.
	Results bool
	// Secrets names the Secrets with credentials for S3 that the controller may read.
	Secrets []string
	// Settle is the time from the creation of the policy until it is surely in force.
	// Zero means Settle. Tests shorten it.
	Settle time.Duration
}

// Settle is the default of Trust.Settle. API servers read their policies again about once
// in a second, and their clocks differ.
const Settle = time.Minute

const admissionGroup = "admissionregistration.k8s.io"

var (
	policies = schema.GroupVersionResource{Group: admissionGroup, Version: "v1", Resource: "validatingadmissionpolicies"}
	bindings = schema.GroupVersionResource{Group: admissionGroup, Version: "v1", Resource: "validatingadmissionpolicybindings"}
	selves   = schema.GroupVersionResource{Group: "authentication.k8s.io", Version: "v1", Resource: "selfsubjectreviews"}
)

// name returns the name of the policy and of its binding. Each list of users has its own name,
// so a changed list is a new policy. Allow refuses objects that are older than the policy.
func (t Trust) name() string {
	sum := sha256.Sum256([]byte(strings.Join(append(slices.Sorted(slices.Values(t.Users)), t.Controller), "\n")))
	return "berth-slurm-jobs-" + t.Namespace + "-" + hex.EncodeToString(sum[:4])
}

type object = map[string]any

// list returns values as a list in an unstructured object.
func list[T any](values ...T) []any {
	all := []any{}
	for _, value := range values {
		all = append(all, value)
	}
	return all
}

// policy returns the spec of a ValidatingAdmissionPolicy. It lets only the users create objects
// and edit specs, and only the users and the controller write statuses. Not even the
// controller may edit specs. Everybody may update the rest of an object, as far as their roles
// permit.
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

// binding returns the spec of the ValidatingAdmissionPolicyBinding that denies what the policy
// refuses in the namespace.
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

// rule returns a rule of a role.
func rule(group string, resources []any, verbs ...string) any {
	return object{"apiGroups": list(group), "resources": resources, "verbs": list(verbs...)}
}

// Setup returns, as YAML, what the administrator of a cluster applies for a controller: the
// definitions of the kinds, the policy, and the roles of the controller and of the users.
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

// objects returns the roles, their bindings and, if there are users, the policy.
func (t Trust) objects() []object {
	const rbacGroup, controllerRole, userRole = "rbac.authorization.k8s.io", "berth-slurm-jobs", "berth-slurm-jobs-users"
	manifest := func(api, kind, name, namespace string, fields object) object {
		metadata := object{"name": name}
		if namespace != "" {
			metadata["namespace"] = namespace
		}
		result := object{"apiVersion": api, "kind": kind, "metadata": metadata}
		maps.Copy(result, fields)
		return result
	}
	// A binding has the name of its role.
	bind := func(kind, role, namespace string, users ...string) object {
		subjects := []any{}
		for _, user := range users {
			subjects = append(subjects, object{"apiGroup": rbacGroup, "kind": "User", "name": user})
		}
		return manifest(rbacGroup+"/v1", kind+"Binding", role, namespace, object{
			"roleRef": object{"apiGroup": rbacGroup, "kind": kind, "name": role}, "subjects": subjects,
		})
	}
	rules := list(
		rule(kinds.BridgeJob.Group, list(kinds.BridgeJob.Plural, kinds.BridgeJob.Plural+"/status"), "get", "list", "watch", "patch"),
		rule(kinds.SlurmJob.Group, list(kinds.SlurmJob.Plural, kinds.SlurmJob.Plural+"/status", kinds.WlmJob.Plural, kinds.WlmJob.Plural+"/status"), "get", "list", "watch", "patch"),
		rule("", list("events"), "create", "patch"),
		rule("coordination.k8s.io", list("leases"), "get", "create", "update"),
	)
	if t.Results {
		rules = append(rules,
			rule("", list("pods"), "get", "create", "delete"),
			rule("", list("pods/attach", "pods/exec"), "get", "create"),
			rule("", list("events"), "list"))
	}
	if len(t.Secrets) > 0 {
		rules = append(rules, object{"apiGroups": list(""), "resources": list("secrets"), "resourceNames": list(t.Secrets...), "verbs": list("get")})
	}
	objects := []object{
		manifest(rbacGroup+"/v1", "Role", controllerRole, t.Namespace, object{"rules": rules}),
		bind("Role", controllerRole, t.Namespace, t.Controller),
	}
	if len(t.Users) == 0 {
		return objects
	}
	return append(objects,
		manifest(admissionGroup+"/v1", "ValidatingAdmissionPolicy", t.name(), "", object{"spec": t.policy()}),
		manifest(admissionGroup+"/v1", "ValidatingAdmissionPolicyBinding", t.name(), "", object{"spec": t.binding()}),
		manifest(rbacGroup+"/v1", "ClusterRole", t.name(), "", object{"rules": list(object{
			"apiGroups": list(admissionGroup), "resources": list(policies.Resource, bindings.Resource), "resourceNames": list(t.name()), "verbs": list("get"),
		})}),
		bind("ClusterRole", t.name(), "", t.Controller),
		manifest(rbacGroup+"/v1", "Role", userRole, t.Namespace, object{"rules": list(
			rule(kinds.BridgeJob.Group, list(kinds.BridgeJob.Plural), "create", "delete", "get", "list", "patch", "update", "watch"),
			rule(kinds.SlurmJob.Group, list(kinds.SlurmJob.Plural, kinds.WlmJob.Plural), "create", "delete", "get", "list", "patch", "update", "watch"),
			rule("", list("events"), "get", "list", "watch"),
		)}),
		bind("Role", userRole, t.Namespace, t.Users...),
	)
}

// Self returns the user name that the API server knows a client by.
func Self(ctx context.Context, client dynamic.Interface) (string, error) {
	review := &unstructured.Unstructured{Object: object{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}}
	review, err := client.Resource(selves).Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("ask the API server for the name of this user: %w", err)
	}
	name, _, err := unstructured.NestedString(review.Object, "status", "userInfo", "username")
	return name, err
}

// Check checks that the policy and its binding are installed, and unchanged since they were
// created. It returns the time since which both exist. API servers admit only objects of the
// users soon after it. If one is missing or changed, the error contains the remedy for an
// administrator.
func (t Trust) Check(ctx context.Context, client dynamic.Interface) (since time.Time, err error) {
	const remedy = "have the cluster's administrator apply the output of 'berth slurm-jobs setup' with the same --namespace, --allow-users and --user %s"
	for resource, want := range map[schema.GroupVersionResource]object{policies: t.policy(), bindings: t.binding()} {
		installed, err := client.Resource(resource).Get(ctx, t.name(), metav1.GetOptions{})
		if err != nil {
			return time.Time{}, fmt.Errorf("read the policy that admits only objects of --allow-users: %w: "+remedy, err, t.Controller)
		}
		if !equal(installed.Object["spec"], want) {
			return time.Time{}, fmt.Errorf("%s %s was changed: "+remedy, installed.GetKind(), t.name(), t.Controller)
		}
		if installed.GetGeneration() != 1 {
			// Its time says nothing about objects from before the last change.
			return time.Time{}, fmt.Errorf("%s %s was changed since it was created, and could have admitted anybody's objects meanwhile: have the cluster's administrator delete it, and apply the output of 'berth slurm-jobs setup' again",
				installed.GetKind(), t.name())
		}
		if created := installed.GetCreationTimestamp().Time; created.After(since) {
			since = created
		}
	}
	return since, nil
}

// equal reports whether two values are the same JSON.
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

// ErrForbidden is wrapped by errors of Allow that mean that an object never gets a job.
var ErrForbidden = errors.New("not permitted")

// checkAgain is the lifetime of the permission for an object that waits for its job.
const checkAgain = 10 * time.Minute

// Allow returns a function that reports with an error why an object gets no job. The error wraps
// ErrForbidden for an object from before the time when the policy was surely in force: anybody
// could have created it. It also returns the errors of Check.
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
