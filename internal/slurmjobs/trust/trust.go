// Package trust decides whose objects become jobs: whoever creates an object in a served
// namespace runs code as the user of the controller. The package generates the admission policy
// and the roles that an administrator installs, and checks that the policy is installed
// unchanged. The API server enforces the policy.
package trust

import (
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
	// PartitionNodes permits the controller to show partitions as Nodes and jobs as pods, and the
	// users to read pods and their logs. A policy confines the controller to its own Nodes.
	PartitionNodes bool
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
