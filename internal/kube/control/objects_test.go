package control

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"

	"berth.dev/berth/internal/base/cluster"
)

const testGroup = "test.berth.dev"

func gibibyte() *resource.Quantity { return resource.NewQuantity(1<<30, resource.BinarySI) }

// testOpenAPI checks that the documents built on demand are complete: each
// version of each group has one, and it describes the resources that discovery
// lists.
func testOpenAPI(t *testing.T, c *testCluster) {
	config := c.config(t, cluster.UserAdmin)
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	if err := json.Unmarshal(get(t, config, "/openapi/v3", "application/json"), &index); err != nil {
		t.Fatal(err)
	}
	var v2 struct {
		Paths       map[string]any
		Definitions map[string]any
	}
	if err := json.Unmarshal(get(t, config, "/openapi/v2", "application/json"), &v2); err != nil {
		t.Fatal(err)
	}
	_, lists, err := c.client(t, cluster.UserAdmin).Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		path := "apis/" + list.GroupVersion
		if !strings.Contains(list.GroupVersion, "/") {
			path = "api/" + list.GroupVersion
		}
		entry, known := index.Paths[path]
		if !known {
			t.Errorf("no OpenAPI v3 document of %s", list.GroupVersion)
			continue
		}
		var document struct {
			Paths      map[string]any
			Components struct{ Schemas map[string]any }
		}
		if err := json.Unmarshal(get(t, config, entry.ServerRelativeURL, "application/json"), &document); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, r := range list.APIResources {
			name, sub, _ := strings.Cut(r.Name, "/")
			url := "/" + path + "/"
			if r.Namespaced {
				url += "namespaces/{namespace}/"
			}
			url += name
			if sub != "" {
				url += "/{name}/" + sub
			}
			if document.Paths[url] == nil {
				t.Errorf("OpenAPI v3 lacks %s", url)
			}
			if v2.Paths[url] == nil {
				t.Errorf("OpenAPI v2 lacks %s", url)
			}
		}
	}
	if len(v2.Definitions) < 500 {
		t.Errorf("OpenAPI v2 has %d definitions", len(v2.Definitions))
	}
	// A client with the address of an older version's document is redirected.
	get(t, config, "/openapi/v3/apis/apps/v1?hash=OLD", "application/json")
	// kubectl prefers protobuf.
	get(t, config, "/openapi/v3/apis/apps/v1", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf")
}

// testCustomResources defines a kind and uses it at once.
func testCustomResources(t *testing.T, c *testCluster) {
	config := c.config(t, cluster.UserAdmin)
	definitions, err := extensions.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = definitions.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "ships." + testGroup},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: testGroup, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "ships", Singular: "ship", Kind: "Ship", ListKind: "ShipList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type:       "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{"length": {Type: "integer"}},
				}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ships := client.Resource(schema.GroupVersionResource{Group: testGroup, Version: "v1", Resource: "ships"}).Namespace("default")
	ship := func(name string, length any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": testGroup + "/v1", "kind": "Ship",
			"metadata": map[string]any{"name": name}, "length": length,
		}}
	}
	eventually(t, "create a custom resource", func() error {
		_, err := ships.Create(t.Context(), ship("one", int64(7)), metav1.CreateOptions{})
		return err
	})
	if _, err := ships.Create(t.Context(), ship("two", "long"), metav1.CreateOptions{}); err == nil {
		t.Error("a custom resource against its schema was accepted")
	}
	eventually(t, "publish the OpenAPI document of the custom resource", func() error {
		if document := get(t, config, "/openapi/v3", "application/json"); !strings.Contains(string(document), "apis/"+testGroup+"/v1") {
			return fmt.Errorf("not in the index")
		}
		return nil
	})
}

// testTolerations checks that pods do not wait minutes for a kubelet that is
// gone.
func testTolerations(t *testing.T, c *testCluster) {
	pod := testPod("leaves-soon")
	pod.Spec.Tolerations = nil
	made, err := c.client(t, cluster.UserAdmin).CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Fatal(err)
	}
	seconds := map[string]int64{}
	for _, toleration := range made.Spec.Tolerations {
		seconds[toleration.Key] = *toleration.TolerationSeconds
	}
	want := map[string]int64{corev1.TaintNodeNotReady: 30, corev1.TaintNodeUnreachable: 30}
	if !maps.Equal(seconds, want) {
		t.Errorf("tolerates for seconds %v, want %v", seconds, want)
	}
}

func testLoadBalancers(t *testing.T, c *testCluster) {
	services := c.client(t, cluster.UserAdmin).CoreV1().Services("default")
	create := func(name string, port int32, families ...corev1.IPFamily) {
		t.Helper()
		_, err := services.Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": name},
				Ports:      []corev1.ServicePort{{Port: port}},
				IPFamilies: families,
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	addresses := func(name string, family cluster.Family) error {
		service, err := services.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		ingress := service.Status.LoadBalancer.Ingress
		wanted := c.plan.NodeAddresses(family)
		if len(ingress) != len(wanted) || len(wanted) != len(c.plan.Members) {
			return fmt.Errorf("service %s has %+v, want %v", name, ingress, wanted)
		}
		for i, address := range wanted {
			if ingress[i].IP != address.String() || *ingress[i].IPMode != corev1.LoadBalancerIPModeVIP {
				return fmt.Errorf("service %s has %+v, want %v", name, ingress, wanted)
			}
		}
		return nil
	}
	refused := func(name, why string) error {
		events, err := c.client(t, cluster.UserAdmin).CoreV1().Events("default").List(t.Context(),
			metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.Reason == "SyncLoadBalancerFailed" && strings.Contains(event.Message, why) {
				return nil
			}
		}
		return fmt.Errorf("no event says %q", why)
	}
	create("web", 80)
	four, ipv6 := c.plan.Addresses.Family, *c.plan.Addresses.IPv6
	eventually(t, "balance load", func() error { return addresses("web", four) })
	create("six", 81, corev1.IPv6Protocol)
	eventually(t, "balance load of IPv6", func() error { return addresses("six", ipv6) })
	create("other", 80)
	eventually(t, "refuse a port in use", func() error { return refused("other", "port 80/TCP") })
	create("api", int32(c.plan.Addresses.APIPort))
	eventually(t, "refuse a port of the node", func() error { return refused("api", "kube-apiserver") })
	if err := services.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "give the port to the next", func() error { return addresses("other", four) })
}

// testControllers checks that the controllers may do their work.
func testControllers(t *testing.T, c *testCluster) {
	admin := c.client(t, cluster.UserAdmin)
	labels := map[string]string{"app": "d"}
	_, err := admin.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: testPod("").Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "schedule a deployment's pod", func() error {
		pods, err := admin.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=d"})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 || pods.Items[0].Spec.NodeName == "" {
			return fmt.Errorf("%d pods", len(pods.Items))
		}
		return nil
	})
	_, err = admin.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "fresh"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "fill a new namespace", func() error {
		if _, err := admin.CoreV1().ServiceAccounts("fresh").Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
			return err
		}
		_, err := admin.CoreV1().ConfigMaps("fresh").Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
	if err := admin.CoreV1().Namespaces().Delete(t.Context(), "fresh", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "delete the namespace", func() error {
		_, err := admin.CoreV1().Namespaces().Get(t.Context(), "fresh", metav1.GetOptions{})
		if err == nil {
			return fmt.Errorf("still there")
		}
		return nil
	})
}

// testSeed lets upstream's own hook reconcile the roles, which must find
// nothing to change, and compares seeded objects with what upstream's
// controllers make of a new namespace.
func testSeed(t *testing.T, c *testCluster) {
	admin := c.client(t, cluster.UserAdmin)
	before := policyVersions(t, admin)
	_, reconcile, err := rbacrest.RESTStorageProvider{}.PostStartHook()
	if err != nil {
		t.Fatal(err)
	}
	hook := server.PostStartHookContext{LoopbackClientConfig: c.config(t, cluster.UserAdmin), Context: t.Context()}
	if err := reconcile(hook); err != nil {
		t.Fatal(err)
	}
	after := policyVersions(t, admin)
	for name, version := range after {
		if before[name] != version {
			t.Errorf("upstream changed %s (version %q to %q)", name, before[name], version)
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d objects before, %d after", len(before), len(after))
	}
	cidr, err := admin.NetworkingV1().ServiceCIDRs().Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(cidr.Spec.CIDRs, ",") != serviceRanges(c.plan) {
		t.Errorf("service range %+v", cidr.Spec)
	}
}

func policyVersions(t *testing.T, client kubernetes.Interface) map[string]string {
	t.Helper()
	versions := map[string]string{}
	note := func(kind string, m metav1.ObjectMeta) { versions[kind+m.Namespace+"/"+m.Name] = m.ResourceVersion }
	policy := client.RbacV1()
	roles, err := policy.ClusterRoles().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range roles.Items {
		note("clusterrole ", o.ObjectMeta)
	}
	bindings, err := policy.ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range bindings.Items {
		note("clusterrolebinding ", o.ObjectMeta)
	}
	local, err := policy.Roles("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range local.Items {
		note("role ", o.ObjectMeta)
	}
	localBindings, err := policy.RoleBindings("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range localBindings.Items {
		note("rolebinding ", o.ObjectMeta)
	}
	return versions
}
