package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth.dev/berth/internal/kube/outage"
)

// recordName is the ConfigMap in kube-system that lists the objects a run
// follows.
const recordName = "berth-run"

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// rememberLimit bounds the time of all attempts of Remember.
const rememberLimit = 30 * time.Second

// Remember stores the list of followed objects in the cluster, so that another
// process can continue to follow them. It waits for an API server that does not answer.
func (c *Client) Remember(ctx context.Context, objects []Object) error {
	var followed []map[string]any
	for _, object := range objects {
		t, err := newTarget(object)
		if err != nil {
			return fmt.Errorf("read %s: %w", object.Name(), err)
		}
		if t == nil {
			continue // nothing runs of it; Secrets are among these
		}
		kept := object.DeepCopy()
		kept.SetManagedFields(nil)
		kept.SetAnnotations(nil)
		followed = append(followed, kept.Object)
	}
	encoded, err := json.Marshal(followed)
	if err != nil {
		return fmt.Errorf("encode what is followed: %w", err)
	}
	record := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": recordName},
		"data":     map[string]any{"objects": string(encoded)},
	}}
	ctx, cancel := context.WithTimeout(ctx, rememberLimit)
	defer cancel()
	err = outage.Outlast(ctx, func(again bool) error {
		_, err := c.dynamic.Resource(configMaps).Namespace(metav1.NamespaceSystem).Create(ctx, record, metav1.CreateOptions{})
		if again && apierrors.IsAlreadyExists(err) {
			return nil // an earlier attempt has created it
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("write down what is followed (config map %s): %w", recordName, err)
	}
	return nil
}

// Remembered returns the objects that Remember stored.
func (c *Client) Remembered(ctx context.Context) ([]Object, error) {
	record, err := c.dynamic.Resource(configMaps).Namespace(metav1.NamespaceSystem).Get(ctx, recordName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read what is followed (config map %s): %w", recordName, err)
	}
	text, _, err := unstructured.NestedString(record.Object, "data", "objects")
	var followed []map[string]any
	if err == nil {
		err = json.Unmarshal([]byte(text), &followed)
	}
	if err != nil {
		return nil, fmt.Errorf("read what is followed (config map %s): %w", recordName, err)
	}
	var objects []Object
	for _, content := range followed {
		objects = append(objects, Object{Unstructured: &unstructured.Unstructured{Object: content}, Source: recordName})
	}
	return objects, nil
}
