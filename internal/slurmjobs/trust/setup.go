package trust

import (
	"bytes"
	"fmt"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/slurmjobs/kinds"
)

// rule returns a rule of a role.
func rule(group string, resources []any, verbs ...string) any {
	return object{"apiGroups": list(group), "resources": resources, "verbs": list(verbs...)}
}

// namedRule returns a rule of a role for the objects with some names.
func namedRule(group string, resources []any, names []string, verbs ...string) any {
	return object{"apiGroups": list(group), "resources": resources, "resourceNames": list(names...), "verbs": list(verbs...)}
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

// rbacGroup is the API group of roles.
const rbacGroup = "rbac.authorization.k8s.io"

// manifest returns an object. An empty namespace stands for none.
func manifest(api, kind, name, namespace string, fields object) object {
	metadata := object{"name": name}
	if namespace != "" {
		metadata["namespace"] = namespace
	}
	result := object{"apiVersion": api, "kind": kind, "metadata": metadata}
	maps.Copy(result, fields)
	return result
}

// role returns a Role, or a ClusterRole without a namespace, and binds it to users.
func role(name, namespace string, rules []any, users ...string) []object {
	kind := "Role"
	if namespace == "" {
		kind = "ClusterRole"
	}
	subjects := []any{}
	for _, user := range users {
		subjects = append(subjects, object{"apiGroup": rbacGroup, "kind": "User", "name": user})
	}
	return []object{
		manifest(rbacGroup+"/v1", kind, name, namespace, object{"rules": rules}),
		manifest(rbacGroup+"/v1", kind+"Binding", name, namespace, object{
			"roleRef": object{"apiGroup": rbacGroup, "kind": kind, "name": name}, "subjects": subjects,
		}),
	}
}

// objects returns the roles, their bindings, and the policies.
func (t Trust) objects() []object {
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
		rules = append(rules, namedRule("", list("secrets"), t.Secrets, "get"))
	}
	userRules := list(
		rule(kinds.BridgeJob.Group, list(kinds.BridgeJob.Plural), "create", "delete", "get", "list", "patch", "update", "watch"),
		rule(kinds.SlurmJob.Group, list(kinds.SlurmJob.Plural, kinds.WlmJob.Plural), "create", "delete", "get", "list", "patch", "update", "watch"),
		rule("", list("events"), "get", "list", "watch"),
	)
	var objects []object
	if t.PartitionNodes {
		rules = append(rules,
			rule("", list("pods"), "get", "list", "watch", "create", "delete"),
			rule("", list("pods/status"), "patch"))
		userRules = append(userRules, rule("", list("pods", "pods/log"), "get", "list", "watch"))
		objects = t.nodeObjects()
	}
	objects = append(objects, role("berth-slurm-jobs", t.Namespace, rules, t.Controller)...)
	if len(t.Users) == 0 {
		return objects
	}
	objects = append(objects,
		manifest(admissionGroup+"/v1", "ValidatingAdmissionPolicy", t.name(), "", object{"spec": t.policy()}),
		manifest(admissionGroup+"/v1", "ValidatingAdmissionPolicyBinding", t.name(), "", object{"spec": t.binding()}))
	objects = append(objects, role(t.name(), "", list(namedRule(admissionGroup, list(policies.Resource, bindings.Resource), []string{t.name()}, "get")), t.Controller)...)
	return append(objects, role("berth-slurm-jobs-users", t.Namespace, userRules, t.Users...)...)
}

// nodeObjects returns the controller's rights to show partitions as Nodes, and a policy: roles cannot
// confine it to its own Nodes, whose names are not known yet. So the policy lets it change only
// Nodes and leases with its annotation.
func (t Trust) nodeObjects() []object {
	name := "berth-slurm-jobs-" + t.Namespace + "-nodes"
	ours := func(object string) string {
		return fmt.Sprintf(`(%[1]s == null || has(%[1]s.metadata.annotations) && %[2]q in %[1]s.metadata.annotations && %[1]s.metadata.annotations[%[2]q] == %[3]q)`,
			object, cluster.PartitionOwner, t.Namespace)
	}
	policy := object{
		"failurePolicy": "Fail",
		"matchConstraints": object{"resourceRules": list(
			object{"apiGroups": list(""), "apiVersions": list("*"), "resources": list("nodes", "nodes/*"), "operations": list("CREATE", "UPDATE", "DELETE")},
			object{"apiGroups": list("coordination.k8s.io"), "apiVersions": list("*"), "resources": list("leases"), "operations": list("CREATE", "UPDATE", "DELETE")},
		)},
		"matchConditions": list(object{
			"name":       "controller",
			"expression": fmt.Sprintf(`request.userInfo.username == %s && (!has(request.namespace) || request.namespace in ["", %q])`, strconv.QuoteToASCII(t.Controller), corev1.NamespaceNodeLease),
		}),
		"validations": list(object{
			"expression": ours("object") + " && " + ours("oldObject"),
			"message":    "the controller of Slurm jobs may change only the nodes of its partitions",
			"reason":     "Forbidden",
		}),
	}
	objects := []object{
		manifest(admissionGroup+"/v1", "ValidatingAdmissionPolicy", name, "", object{"spec": policy}),
		manifest(admissionGroup+"/v1", "ValidatingAdmissionPolicyBinding", name, "", object{"spec": object{"policyName": name, "validationActions": list("Deny")}}),
	}
	objects = append(objects, role(name, "", list(
		rule("", list("nodes"), "list", "create", "patch", "delete"),
		rule("", list("nodes/status"), "patch"),
	), t.Controller)...)
	objects = append(objects, role(name, corev1.NamespaceNodeLease, list(rule("coordination.k8s.io", list("leases"), "create", "patch")), t.Controller)...)
	// The authority of the API servers' certificates, for the server of logs.
	return append(objects, role(name, metav1.NamespaceSystem, list(namedRule("", list("configmaps"), []string{"extension-apiserver-authentication"}, "get")), t.Controller)...)
}
