package workload

import (
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	ktesting "k8s.io/client-go/testing"
)

// The API server closes the connection, before or after it has stored the list.
func TestFollowedObjectsAreStoredAfterAnOutage(t *testing.T) {
	for _, stored := range []bool{false, true} {
		server := fake.NewSimpleDynamicClient(runtime.NewScheme())
		calls := 0
		server.PrependReactor("create", "configmaps", func(action ktesting.Action) (bool, runtime.Object, error) {
			if calls++; calls > 1 {
				return false, nil, nil
			}
			if stored {
				if err := server.Tracker().Create(configMaps, action.(ktesting.CreateAction).GetObject(), metav1.NamespaceSystem); err != nil {
					t.Error(err)
				}
			}
			return true, nil, &url.Error{Op: "Post", URL: "https://127.0.0.1:6443", Err: io.EOF}
		})
		client := &Client{dynamic: server}
		if err := client.Remember(t.Context(), nil); err != nil || calls != 2 {
			t.Errorf("stored=%v: %v after %d calls", stored, err, calls)
		}
		if err := client.Remember(t.Context(), nil); err == nil {
			t.Error("the list of an earlier run is used")
		}
	}
}

func TestFollowerProcessSeesNoSecrets(t *testing.T) {
	objects, err := parse("app.yaml", []byte(`
apiVersion: v1
kind: Secret
metadata: {name: s, namespace: default}
stringData: {word: sesame}
---
apiVersion: batch/v1
kind: Job
metadata: {name: j, namespace: default, uid: u1}
spec: {parallelism: 2, template: {spec: {containers: [{name: main}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: default, uid: u2}
spec: {restartPolicy: Never, containers: [{name: main}]}
`), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	client := &Client{dynamic: fake.NewSimpleDynamicClient(runtime.NewScheme())}
	if err := client.Remember(t.Context(), objects); err != nil {
		t.Fatal(err)
	}
	remembered, err := client.Remembered(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, object := range remembered {
		names = append(names, object.Name())
	}
	if want := []string{"Job j", "Pod p"}; !slices.Equal(names, want) {
		t.Errorf("%v are followed, want %v", names, want)
	}
	found, err := targets(remembered)
	if err != nil || len(found) != 2 || !found[0].finite || found[0].single || found[1].object.GetUID() != "u2" {
		t.Errorf("followed are %+v, %v", found, err)
	}
	record, err := client.dynamic.Resource(configMaps).Namespace("kube-system").Get(t.Context(), recordName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if text, _, _ := unstructured.NestedString(record.Object, "data", "objects"); strings.Contains(text, "sesame") {
		t.Errorf("the record holds a secret: %s", text)
	}
}
