package control

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/notify"
	"berth.dev/berth/internal/kube/control/controltest"
	"berth.dev/berth/internal/kube/savedstate"
)

// keepState gives the cluster a socket that serves its state, and returns the path.
func (c *testCluster) keepState(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	c.state = listener
	return path
}

func readState(t testing.TB, path string) (savedstate.Facts, []savedstate.Record) {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	facts, records, err := savedstate.Read(conn)
	if err != nil {
		t.Fatal(err)
	}
	return facts, records
}

// restore makes the cluster start with the state of an earlier one.
func (c *testCluster) restore(t testing.TB, facts savedstate.Facts, records []savedstate.Record) {
	t.Helper()
	var content strings.Builder
	if err := savedstate.Write(&content, facts, records); err != nil {
		t.Fatal(err)
	}
	controltest.WriteFile(t, c.plan.Paths.Restore(), []byte(content.String()))
}

// writePlan writes a plan that has changed after newTestCluster.
func writePlan(t *testing.T, plan cluster.Plan) {
	t.Helper()
	encoded, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	controltest.WriteFile(t, plan.Paths.Plan(), encoded)
}

// Nodes of other jobs return with their pods. Clients that watched the earlier cluster list all
// objects again.
func TestClusterContinuesForNodesOfOtherJobs(t *testing.T) {
	first := newTestCluster(t)
	first.plan.Seats = 1
	writePlan(t, first.plan)
	path := first.keepState(t)
	role := first.start(t)
	role.awaitReady(t)
	ctx, admin := t.Context(), first.client(t, cluster.UserAdmin)
	for _, node := range []string{first.plan.Members[0].Name, "n2-57"} {
		if err := registerNode(ctx, admin, node); err != nil {
			t.Fatal(err)
		}
	}
	pod := testPod("there")
	pod.Spec.NodeName = "n2-57"
	pod, err := admin.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	facts, records := readState(t, path)
	role.stop(t)

	for _, returning := range []bool{true, false} {
		second := newTestCluster(t)
		second.plan.Seats = first.plan.Seats
		writePlan(t, second.plan)
		facts.Returning = returning
		second.restore(t, facts, records)
		role = second.start(t)
		role.awaitReady(t)
		admin = second.client(t, cluster.UserAdmin)
		nodes, err := admin.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		same, err := admin.CoreV1().Pods("default").Get(ctx, "there", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !returning {
			if len(nodes.Items) != 0 || same.Spec.NodeName != "" {
				t.Errorf("the nodes are %v, and the pod is on %q", nodes.Items, same.Spec.NodeName)
			}
			role.stop(t)
			continue
		}
		if len(nodes.Items) != 1 || nodes.Items[0].Name != "n2-57" || same.UID != pod.UID || same.Spec.NodeName != "n2-57" {
			t.Errorf("the nodes are %v, and the pod is %+v", nodes.Items, same)
		}
		if revision, err := strconv.ParseInt(nodes.ResourceVersion, 10, 64); err != nil || revision <= facts.Revision+revisionGap {
			t.Errorf("revision %s follows %d", nodes.ResourceVersion, facts.Revision)
		}
		watch, err := admin.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{ResourceVersion: pod.ResourceVersion})
		if err == nil {
			event := <-watch.ResultChan()
			err = apierrors.FromObject(event.Object)
		}
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			t.Errorf("a watch since revision %s of the earlier cluster: %v", pod.ResourceVersion, err)
		}
		role.stop(t)
	}
}

func TestObjectsReturnInAnotherCluster(t *testing.T) {
	first := newTestCluster(t)
	path := first.keepState(t)
	role := first.start(t)
	role.awaitReady(t)
	ctx, admin := t.Context(), first.client(t, cluster.UserAdmin)
	if err := registerNode(ctx, admin, "old-node"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	service, err := admin.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token, err := admin.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().Pods("default").Create(ctx, testPod("bare"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitScheduled(t, admin, "bare")
	oldToken := awaitToken(t, admin, token.Name)
	facts, records := readState(t, path)
	role.stop(t)

	second := newTestCluster(t)
	second.restore(t, facts, records)
	role = second.start(t)
	role.awaitReady(t)
	admin = second.client(t, cluster.UserAdmin)
	if nodes, err := admin.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err != nil || len(nodes.Items) != 0 {
		t.Errorf("%d nodes of the old cluster are there (%v)", len(nodes.Items), err)
	}
	if _, err := admin.CoreV1().Namespaces().Get(ctx, "mine", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	same, err := admin.CoreV1().Services("default").Get(ctx, "web", metav1.GetOptions{})
	if err != nil || same.UID != service.UID || !slices.Equal(same.Spec.ClusterIPs, service.Spec.ClusterIPs) || same.Spec.Ports[0].NodePort != service.Spec.Ports[0].NodePort {
		t.Errorf("the Service is %+v, was %+v (%v)", same, service, err)
	}
	// Neither its address nor its port is given to another.
	_, err = admin.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "thief"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: service.Spec.ClusterIP,
			Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err == nil {
		t.Error("another Service has the same address")
	}
	if newToken := awaitToken(t, admin, token.Name); newToken == oldToken {
		t.Error("the token is the old cluster's")
	}
	// The seed of the new cluster and the old objects do not mix.
	authority, err := admin.CoreV1().ConfigMaps("mine").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
	eventually(t, "publish the authority", func() error {
		authority, err = admin.CoreV1().ConfigMaps("mine").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
	own, err := admin.CoreV1().ConfigMaps("default").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
	if err != nil || authority.Data["ca.crt"] != own.Data["ca.crt"] {
		t.Errorf("namespaces know different authorities (%v)", err)
	}
	if err := registerNode(ctx, admin, "new-node"); err != nil {
		t.Fatal(err)
	}
	awaitScheduled(t, admin, "bare")
	// A role that is started again goes on with its own store.
	if _, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "later"}}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	role.stop(t)
	role = second.start(t)
	role.awaitReady(t)
	if _, err := admin.CoreV1().Namespaces().Get(ctx, "later", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	role.stop(t)
}

func awaitToken(t testing.TB, admin kubernetes.Interface, name string) string {
	t.Helper()
	var token string
	eventually(t, "make a token", func() error {
		secret, err := admin.CoreV1().Secrets("default").Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && len(secret.Data["token"]) == 0 {
			err = fmt.Errorf("no token in %s", name)
		}
		if err == nil {
			token = string(secret.Data["token"])
		}
		return err
	})
	return token
}

// BenchmarkState measures how long 2,000 objects take to be read, by how much
// the slowest request is slower meanwhile, and how long a control plane that
// restores them takes to start. Medians in milliseconds.
func BenchmarkState(b *testing.B) {
	const count = 2000
	samples := map[string][]float64{}
	note := func(name string, d time.Duration) {
		samples[name] = append(samples[name], float64(d.Microseconds())/1000)
	}
	for range b.N {
		first := newTestCluster(b)
		path := first.keepState(b)
		role := first.start(b)
		role.awaitReady(b)
		admin := first.client(b, cluster.UserAdmin)
		for i := range count {
			_, err := admin.CoreV1().ConfigMaps("default").Create(b.Context(), &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("object-", i)}, Data: map[string]string{"text": strings.Repeat("some text ", 100)},
			}, metav1.CreateOptions{})
			if err != nil {
				b.Fatal(err)
			}
		}
		note("quiet-request-ms", slowest(b, admin, 300*time.Millisecond, func() {}))
		var facts savedstate.Facts
		var records []savedstate.Record
		note("saving-request-ms", slowest(b, admin, 300*time.Millisecond, func() {
			began := time.Now()
			facts, records = readState(b, path)
			note("save-ms", time.Since(began))
		}))
		role.stop(b)
		if len(records) < count {
			b.Fatalf("%d objects", len(records))
		}
		second := newTestCluster(b)
		second.restore(b, facts, records)
		role = second.start(b)
		note("restored-ready-ms", role.awaitReady(b))
		note("restored-etcd-ms", role.await(b, notify.Event{Event: notify.KindPhase, Name: phaseEtcd}))
		role.stop(b)
	}
	b.ReportMetric(0, "ns/op")
	for name, values := range samples {
		slices.Sort(values)
		b.ReportMetric(values[len(values)/2], name)
	}
}

// slowest returns the latency of the slowest write of a series that runs while
// do runs, and for at least the given time.
func slowest(b *testing.B, admin kubernetes.Interface, least time.Duration, do func()) time.Duration {
	b.Helper()
	ctx, stop := context.WithCancel(b.Context())
	longest := make(chan time.Duration, 1)
	go func() {
		var most time.Duration
		for i := 0; ctx.Err() == nil; i++ {
			began := time.Now()
			_, err := admin.CoreV1().ConfigMaps("default").Patch(b.Context(), "object-0", "application/merge-patch+json", fmt.Appendf(nil, `{"data":{"n":"%d"}}`, i), metav1.PatchOptions{})
			if err != nil {
				b.Error(err)
			}
			most = max(most, time.Since(began))
		}
		longest <- most
	}()
	least -= func() time.Duration { began := time.Now(); do(); return time.Since(began) }()
	<-time.After(max(0, least))
	stop()
	return <-longest
}
