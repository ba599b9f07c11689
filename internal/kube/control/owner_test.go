package control

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/kube/existing"
	"berth.dev/berth/internal/kube/workload"
)

const tenantNamespace = "tenant"

const tenantManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: server}
spec:
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}}
    # On a node, it would wait for the kubelet.
    spec: {nodeSelector: {on: none}, containers: [{name: main, image: example.org/none}]}
---
apiVersion: v1
kind: Service
metadata: {name: server}
spec: {selector: {app: server}, ports: [{port: 80}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
`

func readObjects(t *testing.T, text string) []workload.Object {
	t.Helper()
	path := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	objects, err := workload.Read([]string{path}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func openExisting(t *testing.T, c *testCluster, user string) *existing.Cluster {
	t.Helper()
	opened, err := existing.Open(c.plan.Paths.Kubeconfig(user), tenantNamespace)
	if err == nil {
		err = opened.Reach(t.Context(), func(text string) { t.Log(text) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// testOwner checks that upstream's controllers delete everything that an owner of package
// existing owns, when its deadline has passed and when it is deleted.
func testOwner(t *testing.T, c *testCluster) {
	admin := c.client(t, cluster.UserAdmin)
	there := openExisting(t, c, cluster.UserAdmin)
	objects := readObjects(t, tenantManifest)
	if err := there.Prepare(t.Context(), objects); err == nil || !strings.Contains(err.Error(), "create namespace "+tenantNamespace) {
		t.Errorf("got %v for a missing namespace", err)
	}
	if _, err := admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenantNamespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	own := func(t *testing.T, life time.Duration) (*existing.Owner, []workload.Object) {
		t.Helper()
		objects := readObjects(t, tenantManifest)
		if err := there.Prepare(t.Context(), objects); err != nil {
			t.Fatal(err)
		}
		run := existing.SlurmJob{ID: "4711", Cluster: "test"}
		owner, err := there.CreateOwner(t.Context(), run, time.Now().Add(life))
		if err != nil {
			t.Fatal(err)
		}
		owner.Adopt(objects, run)
		applied, err := there.Client.Apply(t.Context(), objects)
		if err != nil {
			t.Fatal(err)
		}
		return owner, applied
	}

	t.Run("deadline", func(t *testing.T) {
		owner, objects := own(t, time.Hour)
		if exists, err := owner.Exists(t.Context()); !exists || err != nil {
			t.Errorf("the owner exists: %v, %v", exists, err)
		}
		if _, err := there.Client.Apply(t.Context(), objects[:0]); err != nil {
			t.Error(err)
		}
		awaitPods(t, admin)
		if err := owner.Move(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		awaitEmpty(t, admin)
	})
	t.Run("deletion", func(t *testing.T) {
		owner, _ := own(t, time.Hour)
		awaitPods(t, admin)
		for range 2 {
			if err := owner.Delete(t.Context()); err != nil {
				t.Error(err)
			}
		}
		awaitEmpty(t, admin)
		if exists, err := owner.Exists(t.Context()); exists || err != nil {
			t.Errorf("the owner exists: %v, %v", exists, err)
		}
	})
	t.Run("requeued job", func(t *testing.T) {
		own(t, time.Hour)
		again := existing.SlurmJob{ID: "4711", Cluster: "test", Restarts: "1"}
		objects := readObjects(t, tenantManifest)
		if err := there.Prepare(t.Context(), objects); err != nil {
			t.Fatal(err)
		}
		// It leaves the job with this ID in another Slurm cluster, and other runs of this start.
		for _, run := range []existing.SlurmJob{{ID: "4711", Cluster: "other", Restarts: "1"}, {ID: "4711", Cluster: "test"}} {
			if err := there.RemoveEarlier(t.Context(), run, objects); err != nil {
				t.Error(err)
			}
		}
		if _, err := admin.CoreV1().ConfigMaps(tenantNamespace).Get(t.Context(), "settings", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		if err := there.RemoveEarlier(t.Context(), again, objects); err != nil {
			t.Fatal(err)
		}
		owner, err := there.CreateOwner(t.Context(), again, time.Now().Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		owner.Adopt(objects, again)
		if _, err := there.Client.Apply(t.Context(), objects); err != nil {
			t.Error(err)
		}
		if err := owner.Delete(t.Context()); err != nil {
			t.Error(err)
		}
		awaitEmpty(t, admin)
	})
	t.Run("objects of others", func(t *testing.T) {
		if _, err := admin.CoreV1().ConfigMaps(tenantNamespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		objects := readObjects(t, tenantManifest)
		if err := there.Prepare(t.Context(), objects); err != nil {
			t.Fatal(err)
		}
		owner, err := there.CreateOwner(t.Context(), existing.SlurmJob{}, time.Now().Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		owner.Adopt(objects, existing.SlurmJob{})
		if _, err := there.Client.Apply(t.Context(), objects); err == nil || !strings.Contains(err.Error(), "ConfigMap settings") || !strings.Contains(err.Error(), "it exists already") {
			t.Errorf("got %v for a ConfigMap of somebody else", err)
		}
		// The answer to the creation of an own object may be lost.
		services := objects[1:2]
		for range 2 {
			if _, err := there.Client.Apply(t.Context(), services); err != nil {
				t.Error(err)
			}
		}
		if err := owner.Delete(t.Context()); err != nil {
			t.Error(err)
		}
		if err := admin.CoreV1().ConfigMaps(tenantNamespace).Delete(t.Context(), "settings", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		awaitEmpty(t, admin)
	})
	t.Run("scope", func(t *testing.T) {
		err := there.Prepare(t.Context(), readObjects(t, `
apiVersion: v1
kind: Namespace
metadata: {name: other}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: elsewhere, namespace: default}
`))
		for _, want := range []string{"Namespace other", "belongs to no namespace", "ConfigMap elsewhere", "--namespace default"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("no %q in %v", want, err)
			}
		}
	})
	t.Run("rights", func(t *testing.T) {
		err := openExisting(t, c, cluster.UserDNS).Prepare(t.Context(), readObjects(t, tenantManifest))
		for _, want := range []string{userDNS + ") has no right to: ", "create deployments.apps", "get pods/log", "delete services", "--clusterrole=edit"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("no %q in %v", want, err)
			}
		}
	})
	t.Run("quota", func(t *testing.T) {
		quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "small"}, Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{"count/configmaps": resource.MustParse("0")},
		}}
		if _, err := admin.CoreV1().ResourceQuotas(tenantNamespace).Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		objects := readObjects(t, tenantManifest)[2:]
		if err := there.Prepare(t.Context(), objects); err != nil {
			t.Fatal(err)
		}
		owner, err := there.CreateOwner(t.Context(), existing.SlurmJob{}, time.Now().Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		owner.Adopt(objects, existing.SlurmJob{})
		// The quota counts only once its controller has seen it.
		eventually(t, "exceed the quota", func() error {
			_, err := there.Client.Apply(t.Context(), objects)
			if err = existing.Explain(err); err != nil && strings.Contains(err.Error(), "exceeded quota") && strings.Contains(err.Error(), "larger one") {
				return nil
			}
			return fmt.Errorf("got %w", errors.Join(err, there.Client.Remove(t.Context(), objects)))
		})
		if err := owner.Delete(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// awaitPods waits until the Deployment has a pod, which the garbage collector must find.
func awaitPods(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	eventually(t, "a pod", func() error {
		pods, err := client.CoreV1().Pods(tenantNamespace).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(pods.Items) == 0 {
			err = errors.New("no pod")
		}
		return err
	})
}

// awaitEmpty waits until none of the objects exists, nor their owner.
func awaitEmpty(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	eventually(t, "delete everything", func() error {
		pods, err := client.CoreV1().Pods(tenantNamespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		jobs, err := client.BatchV1().Jobs(tenantNamespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(pods.Items)+len(jobs.Items) > 0 {
			return fmt.Errorf("%d pods and %d Jobs exist", len(pods.Items), len(jobs.Items))
		}
		_, service := client.CoreV1().Services(tenantNamespace).Get(t.Context(), "server", metav1.GetOptions{})
		_, deployment := client.AppsV1().Deployments(tenantNamespace).Get(t.Context(), "server", metav1.GetOptions{})
		_, settings := client.CoreV1().ConfigMaps(tenantNamespace).Get(t.Context(), "settings", metav1.GetOptions{})
		for _, err := range []error{service, deployment, settings} {
			if !apierrors.IsNotFound(err) {
				return fmt.Errorf("an object exists, or: %w", err)
			}
		}
		return nil
	})
}
