package trust

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/slurmjobs/kinds"
	"berth.dev/berth/internal/slurmjobs/partitions"
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

// role returns a Role, or a ClusterRole if namespace is empty, and its binding to users.
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
		userRules = append(userRules, rule("", list("pods"), "get", "list", "watch"), rule("", list("pods/log"), "get"))
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

// nodeObjects returns the controller's rights to show partitions as Nodes, and two policies, because
// roles cannot confine it to Nodes and pods whose names are not known yet. The first policy lets it
// change only Nodes and leases with its annotation. The scheduler binds no pods to such Nodes. The
// second lets it change only pods on such Nodes, and create only pods that cannot run.
func (t Trust) nodeObjects() []object {
	name := "berth-slurm-jobs-" + t.Namespace + "-nodes"
	// A change has an object, an oldObject, or both.
	each := func(condition string) string {
		return fmt.Sprintf("[object, oldObject].filter(o, o != null).all(o, %s)", condition)
	}
	validation := func(expression, message string) object {
		return object{"expression": expression, "message": message, "reason": "Forbidden"}
	}
	nodes := t.confine(name, list(
		object{"apiGroups": list(""), "apiVersions": list("*"), "resources": list("nodes", "nodes/*"), "operations": list("CREATE", "UPDATE", "DELETE")},
		object{"apiGroups": list("coordination.k8s.io"), "apiVersions": list("*"), "resources": list("leases"), "operations": list("CREATE", "UPDATE", "DELETE")},
	), fmt.Sprintf(`(!has(request.namespace) || request.namespace in ["", %q])`, corev1.NamespaceNodeLease),
		validation(each(fmt.Sprintf(`o.metadata.name.startsWith(%q) && o.metadata.?annotations[?%q].orValue("") == %q`, partitions.NodePrefix, cluster.PartitionOwner, t.Namespace)),
			"the controller of Slurm jobs may change only the nodes of its partitions; each namespace needs a controller with its own user"),
		validation(fmt.Sprintf(`object == null || request.resource.resource != "nodes" || object.spec.?taints.orValue([]).exists(t, t.key == %q && t.effect == %q) && object.status.?allocatable[?"pods"].orValue("") == "0" && (oldObject == null ? !has(object.spec.podCIDR) : object.spec.?podCIDR == oldObject.spec.?podCIDR)`, partitions.Taint.Key, partitions.Taint.Effect),
			"the nodes of Slurm partitions need the taint "+partitions.Taint.Key+", have room for 0 pods, and get no podCIDR from the controller"))
	pods := list("pods/status")
	if !t.Results {
		pods = append(pods, "pods")
	}
	shown := t.confine("berth-slurm-jobs-"+t.Namespace+"-pods", list(
		object{"apiGroups": list(""), "apiVersions": list("*"), "resources": pods, "operations": list("CREATE", "UPDATE", "DELETE")},
	), fmt.Sprintf("request.namespace == %q", t.Namespace),
		validation(each(fmt.Sprintf(`o.spec.?nodeName.orValue("").startsWith(%q)`, partitions.NodePrefix))+
			fmt.Sprintf(` && (request.operation != "CREATE" || object.spec.containers.all(c, c.image == %q) && !has(object.spec.initContainers) && !has(object.spec.volumes))`, partitions.JobImage),
			"the controller of Slurm jobs may change only pods that show jobs"))
	objects := slices.Concat(nodes, shown, role(name, "", list(
		rule("", list("nodes"), "list", "create", "patch", "delete"),
		rule("", list("nodes/status"), "patch"),
	), t.Controller))
	objects = append(objects, role(name, corev1.NamespaceNodeLease, list(rule("coordination.k8s.io", list("leases"), "create", "patch")), t.Controller)...)
	// The authority of the API servers' certificates, for the server of logs.
	return append(objects, role(name, metav1.NamespaceSystem, list(namedRule("", list("configmaps"), []string{"extension-apiserver-authentication"}, "get")), t.Controller)...)
}

// confine returns a policy that validates the controller's changes under a condition, and its binding.
func (t Trust) confine(name string, rules []any, condition string, validations ...any) []object {
	policy := object{
		"failurePolicy":    "Fail",
		"matchConstraints": object{"resourceRules": rules},
		"matchConditions": list(object{
			"name":       "controller",
			"expression": fmt.Sprintf("request.userInfo.username == %s && %s", strconv.QuoteToASCII(t.Controller), condition),
		}),
		"validations": validations,
	}
	return []object{
		manifest(admissionGroup+"/v1", "ValidatingAdmissionPolicy", name, "", object{"spec": policy}),
		manifest(admissionGroup+"/v1", "ValidatingAdmissionPolicyBinding", name, "", object{"spec": object{"policyName": name, "validationActions": list("Deny")}}),
	}
}
