package control

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane/controller/kubernetesservice"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/notify"
	"berth.dev/berth/internal/kube/control/controltest"
)

// TestControlPlane checks one control plane for everything that the rest of berth
// and its users expect of it.
func TestControlPlane(t *testing.T) {
	c := newTestCluster(t)
	r := c.start(t)
	t.Run("early requests wait", func(t *testing.T) { testEarlyRequests(t, c) })
	r.awaitReady(t)
	t.Run("the API's own Service is there", func(t *testing.T) { testAPIService(t, c) })
	for _, phase := range []string{phaseEtcd, phaseServing, phaseAccess} {
		r.await(t, notify.Event{Event: notify.KindPhase, Name: phase})
	}
	r.await(t, notify.Event{Event: notify.KindAlive})

	for _, sub := range []struct {
		name string
		test func(*testing.T, *testCluster)
	}{
		{"pods are scheduled", testScheduling},
		{"anonymous users are refused", testAnonymous},
		{"roles of berth's clients", testRoles},
		{"add-ons", testAddons},
		{"add-ons as kube-apiserver makes them", testAsCreated},
		{"both listeners serve", testListeners},
		{"version", testVersion},
		{"OpenAPI", testOpenAPI},
		{"custom resources", testCustomResources},
		{"aggregated discovery", testDiscovery},
		{"load balancers", testLoadBalancers},
		{"controllers", testControllers},
		{"default tolerations", testTolerations},
		{"taints of ready nodes", testStaleTaints},
		{"seed", testSeed},
		{"owner of a run's objects", testOwner},
	} {
		t.Run(sub.name, func(t *testing.T) { sub.test(t, c) })
	}
	t.Logf("stopped in %v", r.stop(t))
}

// TestRestart checks that a role that was killed finds its cluster again.
func TestRestart(t *testing.T) {
	c := newTestCluster(t)
	first := c.start(t)
	first.awaitReady(t)
	admin := c.client(t, cluster.UserAdmin)
	if _, err := admin.CoreV1().Pods("default").Create(t.Context(), testPod("survivor"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := first.command.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-first.exited

	second := c.start(t)
	second.awaitReady(t)
	if _, err := admin.CoreV1().Pods("default").Get(t.Context(), "survivor", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	second.stop(t)
}

// TestStopWhileStarting checks that nothing hangs when the order to stop comes
// early.
func TestStopWhileStarting(t *testing.T) {
	c := newTestCluster(t)
	r := c.start(t)
	r.await(t, notify.Event{Event: notify.KindPhase, Name: phaseEtcd})
	r.stop(t)
}

func TestNoListener(t *testing.T) {
	c := newTestCluster(t)
	err := run(t.Context(), c.plan, Options{})
	if err == nil || !strings.Contains(err.Error(), "--listener-fd") {
		t.Errorf("got %v", err)
	}
}

// TestFailureIsReported checks that a role that cannot start reports the reason
// on the descriptor and as the last line of its log.
func TestFailureIsReported(t *testing.T) {
	c := newTestCluster(t)
	controltest.WriteFile(t, c.plan.Paths.PKI(cluster.CA+".crt"), []byte("not a certificate"))
	r := c.start(t)
	<-r.exited
	if r.err == nil {
		t.Fatal("the role ended with success")
	}
	last := r.events[len(r.events)-1]
	if last.Event.Event != notify.KindFatal || last.Error == "" {
		t.Errorf("last event %+v, want a fatal one", last)
	}
	if !strings.HasSuffix(strings.TrimSpace(r.log.String()), last.Error) {
		t.Errorf("the log does not end with %q", last.Error)
	}
}

// testEarlyRequests sends, at the moment of the start, what the node's clients
// send, and expects each to succeed at the first attempt.
func testEarlyRequests(t *testing.T, c *testCluster) {
	requests := map[string]func(context.Context) error{
		"kubelet registers": func(ctx context.Context) error {
			return registerNode(ctx, c.client(t, cluster.UserKubelet), c.plan.Node.Name)
		},
		"kubelet lists its pods": func(ctx context.Context) error {
			_, err := c.client(t, cluster.UserKubelet).CoreV1().Pods("").List(ctx,
				metav1.ListOptions{FieldSelector: "spec.nodeName=" + c.plan.Node.Name})
			return err
		},
		"kubelet lists services": func(ctx context.Context) error {
			_, err := c.client(t, cluster.UserKubelet).CoreV1().Services("").List(ctx, metav1.ListOptions{})
			return err
		},
		"kube-proxy watches services": func(ctx context.Context) error {
			return watchOnce(ctx, c.client(t, cluster.UserProxy))
		},
		"CoreDNS lists endpoints": func(ctx context.Context) error {
			_, err := c.client(t, cluster.UserDNS).DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
			return err
		},
		"provisioner lists claims": func(ctx context.Context) error {
			_, err := c.client(t, cluster.UserProvisioner).CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
			return err
		},
		"a user creates a pod": func(ctx context.Context) error {
			_, err := c.client(t, cluster.UserAdmin).CoreV1().Pods("default").Create(ctx, testPod("early"), metav1.CreateOptions{})
			return err
		},
	}
	var running sync.WaitGroup
	for name, request := range requests {
		running.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			if err := request(ctx); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	running.Wait()
}

func watchOnce(ctx context.Context, client kubernetes.Interface) error {
	watch, err := client.CoreV1().Services("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	watch.Stop()
	return nil
}

func testScheduling(t *testing.T, c *testCluster) {
	awaitScheduled(t, c.client(t, cluster.UserAdmin), "early")
}

func testAnonymous(t *testing.T, c *testCluster) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	for path, want := range map[string]int{
		"/livez": http.StatusOK, "/readyz": http.StatusOK, "/healthz": http.StatusOK,
		"/version": http.StatusUnauthorized, "/api": http.StatusUnauthorized,
		"/api/v1/namespaces/default/secrets": http.StatusUnauthorized,
		"/metrics":                           http.StatusUnauthorized, "/openapi/v2": http.StatusUnauthorized,
	} {
		response, err := client.Get(fmt.Sprintf("https://127.0.0.1:%d%s", c.plan.Addresses.APIPort, path))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("GET %s without credentials: %d, want %d", path, response.StatusCode, want)
		}
	}
}

func testRoles(t *testing.T, c *testCluster) {
	for _, check := range []struct {
		user, verb, group, resource string
		want                        bool
	}{
		{cluster.UserDNS, "watch", "discovery.k8s.io", "endpointslices", true},
		{cluster.UserDNS, "list", "", "namespaces", true},
		{cluster.UserDNS, "list", "", "secrets", false},
		{cluster.UserProxy, "list", "", "services", true},
		{cluster.UserProxy, "list", "", "secrets", false},
		{cluster.UserProvisioner, "create", "", "persistentvolumes", true},
		{cluster.UserProvisioner, "update", "", "persistentvolumeclaims", true},
		{cluster.UserProvisioner, "create", "", "pods", false},
		{cluster.UserScheduler, "create", "", "pods/binding", true},
		{cluster.UserScheduler, "list", "", "secrets", false},
		{cluster.UserKubelet, "list", "", "secrets", false},
		{cluster.UserControllerManager, "delete", "", "pods", true},
	} {
		resource, sub, _ := strings.Cut(check.resource, "/")
		review, err := c.client(t, check.user).AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(),
			&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: check.verb, Group: check.group, Resource: resource, Subresource: sub,
				},
			}}, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("%s: %v", check.user, err)
			continue
		}
		if review.Status.Allowed != check.want {
			t.Errorf("%s may %s %s: %v, want %v", check.user, check.verb, check.resource, review.Status.Allowed, check.want)
		}
	}
	// NodeRestriction: a kubelet speaks for its own node only.
	err := registerNode(t.Context(), c.client(t, cluster.UserKubelet), "another-node")
	if !apierrors.IsForbidden(err) {
		t.Errorf("kubelet creates another node: %v, want forbidden", err)
	}
}

func testAddons(t *testing.T, c *testCluster) {
	admin := c.client(t, cluster.UserAdmin)
	service, err := admin.CoreV1().Services(metav1.NamespaceSystem).Get(t.Context(), dnsService, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if service.Spec.ClusterIP != c.plan.Addresses.DNSService.String() {
		t.Errorf("DNS service has address %s", service.Spec.ClusterIP)
	}
	slices, err := admin.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem).List(t.Context(),
		metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + dnsService})
	if err != nil {
		t.Fatal(err)
	}
	if len(slices.Items) != 1 || slices.Items[0].Endpoints[0].Addresses[0] != c.plan.Addresses.DNS.String() {
		t.Errorf("DNS endpoints: %+v", slices.Items)
	}
	class, err := admin.StorageV1().StorageClasses().Get(t.Context(), defaultStorageClass, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if class.Provisioner != provisioner || class.Annotations[defaultClassAnnotation] != "true" {
		t.Errorf("storage class: %+v", class)
	}
	claim, err := admin.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *gibibyte()}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if claim.Spec.StorageClassName == nil || *claim.Spec.StorageClassName != defaultStorageClass {
		t.Errorf("a claim without a class got %v", claim.Spec.StorageClassName)
	}
}

// testAsCreated compares the add-ons, which are written to the store, with what
// kube-apiserver makes of the same objects.
func testAsCreated(t *testing.T, c *testCluster) {
	admin := c.client(t, cluster.UserAdmin)
	same := func(what string, seeded, made any) {
		t.Helper()
		if !equality.Semantic.DeepEqual(seeded, made) {
			t.Errorf("%s: the seed has\n%+v\nkube-apiserver makes\n%+v", what, seeded, made)
		}
	}
	fresh := func(m metav1.ObjectMeta) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name + "-made", Labels: m.Labels, Annotations: m.Annotations}
	}
	sameMeta := func(what string, seeded, made metav1.ObjectMeta) {
		t.Helper()
		same(what, []any{seeded.Labels, seeded.Annotations, seeded.Generation, seeded.Finalizers},
			[]any{made.Labels, made.Annotations, made.Generation, made.Finalizers})
	}
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

	for _, service := range []*corev1.Service{apiService(c.plan), clusterDNS(c.plan)} {
		services := admin.CoreV1().Services(service.Namespace)
		seeded, err := services.Get(t.Context(), service.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		made, err := services.Create(t.Context(), &corev1.Service{
			ObjectMeta: fresh(service.ObjectMeta), Spec: corev1.ServiceSpec{Ports: service.Spec.Ports},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		seededAddress, err := admin.NetworkingV1().IPAddresses().Get(t.Context(), seeded.Spec.ClusterIP, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		madeAddress, err := admin.NetworkingV1().IPAddresses().Get(t.Context(), made.Spec.ClusterIP, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := services.Delete(t.Context(), made.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		sameMeta(service.Name, seeded.ObjectMeta, made.ObjectMeta)
		made.Spec.ClusterIP, made.Spec.ClusterIPs = seeded.Spec.ClusterIP, seeded.Spec.ClusterIPs
		same(service.Name, seeded.Spec, made.Spec)
		sameMeta("address of "+service.Name, seededAddress.ObjectMeta, madeAddress.ObjectMeta)
		madeAddress.Spec.ParentRef.Name = service.Name
		same("address of "+service.Name, seededAddress.Spec, madeAddress.Spec)
	}

	slice := clusterDNSEndpoints(c.plan)
	seededSlice, err := admin.DiscoveryV1().EndpointSlices(slice.Namespace).Get(t.Context(), slice.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slice.ObjectMeta = fresh(slice.ObjectMeta)
	madeSlice, err := admin.DiscoveryV1().EndpointSlices(slice.Namespace).Create(t.Context(), slice, dry)
	if err != nil {
		t.Fatal(err)
	}
	sameMeta(slice.Name, seededSlice.ObjectMeta, madeSlice.ObjectMeta)
	same(slice.Name, seededSlice.Ports, madeSlice.Ports)
	same(slice.Name, seededSlice.Endpoints, madeSlice.Endpoints)

	class := storageClass(cluster.Plan{})
	seededClass, err := admin.StorageV1().StorageClasses().Get(t.Context(), class.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	class.ObjectMeta = fresh(class.ObjectMeta)
	madeClass, err := admin.StorageV1().StorageClasses().Create(t.Context(), class, dry)
	if err != nil {
		t.Fatal(err)
	}
	sameMeta(class.Name, seededClass.ObjectMeta, madeClass.ObjectMeta)
	seededClass.ObjectMeta, madeClass.ObjectMeta = metav1.ObjectMeta{}, metav1.ObjectMeta{}
	same(class.Name, seededClass, madeClass)
}

// TestAPIServiceMatchesUpstream compares the seed's Service kubernetes with the one that
// upstream's controller creates where there is none.
func TestAPIServiceMatchesUpstream(t *testing.T) {
	plan := cluster.Plan{Addresses: cluster.Addresses{APIService: netip.MustParseAddr("10.96.0.1"), APIPort: 6443}}
	client := fake.NewClientset()
	controller := kubernetesservice.New(kubernetesservice.Config{
		EndpointReconciler: reconcilers.NewNoneEndpointReconciler(),
		ServiceIP:          plan.Addresses.APIService.AsSlice(),
		ServicePort:        443,
		PublicServicePort:  int(plan.Addresses.APIPort),
	}, client, informers.NewSharedInformerFactory(client, 0).Core().V1().Services())
	if err := controller.UpdateKubernetesService(false); err != nil {
		t.Fatal(err)
	}
	theirs, err := client.CoreV1().Services(metav1.NamespaceDefault).Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ours := apiService(plan)
	legacyscheme.Scheme.Default(theirs)
	legacyscheme.Scheme.Default(ours)
	// kube-apiserver adds them: testAsCreated.
	theirs.Spec.ClusterIPs, theirs.Spec.IPFamilies = ours.Spec.ClusterIPs, ours.Spec.IPFamilies
	if !equality.Semantic.DeepEqual(ours.Labels, theirs.Labels) || !equality.Semantic.DeepEqual(ours.Spec, theirs.Spec) {
		t.Errorf("the seed has\n%+v\nupstream makes\n%+v", ours, theirs)
	}
}

func testAPIService(t *testing.T, c *testCluster) {
	admin := c.client(t, cluster.UserAdmin)
	service, err := admin.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if service.Spec.ClusterIP != c.plan.Addresses.APIService.String() {
		t.Errorf("service address %s, want %s", service.Spec.ClusterIP, c.plan.Addresses.APIService)
	}
	slice, err := admin.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := slice.Endpoints[0].Addresses[0]; got != c.plan.Addresses.Node.String() {
		t.Errorf("endpoint address %s, want %s", got, c.plan.Addresses.Node)
	}
	if got := *slice.Ports[0].Port; got != int32(c.plan.Addresses.APIPort) {
		t.Errorf("endpoint port %d, want %d", got, c.plan.Addresses.APIPort)
	}
}

func testListeners(t *testing.T, c *testCluster) {
	for _, port := range []uint16{c.plan.Addresses.APIPort, c.plan.Addresses.HostAPIPort} {
		config := c.config(t, cluster.UserAdmin)
		config.Host = fmt.Sprintf("https://127.0.0.1:%d", port)
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
			t.Errorf("port %d: %v", port, err)
		}
	}
}

func testVersion(t *testing.T, c *testCluster) {
	version, err := c.client(t, cluster.UserAdmin).Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if version.GitVersion != c.plan.KubernetesVersion {
		t.Logf("the test binary was linked without a version: %s", version.GitVersion)
	}
}

func testDiscovery(t *testing.T, c *testCluster) {
	body := get(t, c.config(t, cluster.UserAdmin), "/apis",
		"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	var list struct {
		Kind  string
		Items []struct {
			Metadata metav1.ObjectMeta
			Versions []struct {
				Version, Freshness string
				Resources          []struct{ Resource string }
			}
		}
	}
	if err := json.Unmarshal(body, &list); err != nil {
		t.Fatalf("%v in %.200s", err, body)
	}
	found := map[string]bool{}
	for _, group := range list.Items {
		for _, version := range group.Versions {
			found[group.Metadata.Name] = true
			if version.Freshness != "Current" || len(version.Resources) == 0 {
				t.Errorf("%s/%s is %s with %d resources", group.Metadata.Name, version.Version, version.Freshness, len(version.Resources))
			}
		}
	}
	for _, want := range []string{"apps", "batch", "rbac.authorization.k8s.io", "apiregistration.k8s.io", "apiextensions.k8s.io", testGroup} {
		if !found[want] {
			t.Errorf("group %s is missing", want)
		}
	}
}

// get fetches a path of the API server.
func get(t *testing.T, config *rest.Config, path, accept string) []byte {
	t.Helper()
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", accept)
	response, err := transport.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s: %.200s", path, response.Status, body)
	}
	return body
}
