package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// recordName is the ConfigMap in kube-system that lists the objects a run
// follows.
const recordName = "berth-run"

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// Remember stores the list of followed objects in the cluster, so that another
// process can continue to follow them.
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
	_, err = c.dynamic.Resource(configMaps).Namespace(metav1.NamespaceSystem).Create(ctx, record, metav1.CreateOptions{})
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

// Progress holds a Mark for each log. Another process can continue from it. All
// methods may be called concurrently, and on a nil Progress.
type Progress struct {
	mu sync.Mutex
	// marks maps a container to its mark, or a container and stream where the API
	// server gives the log.
	marks map[string]Mark
	// noted is called for each mark, in order; it may be nil.
	noted func(key string, mark Mark)
}

// NewProgress returns a Progress that begins with marks, and calls noted for each
// further one. When it calls noted, the output up to the mark has been written.
func NewProgress(marks map[string]Mark, noted func(key string, mark Mark)) *Progress {
	return &Progress{marks: marks, noted: noted}
}

// Marks returns a copy of all marks.
func (p *Progress) Marks() map[string]Mark {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.marks)
}

// ReadProgress parses the output of Progress.String. Any other text is the
// beginning of all logs.
func ReadProgress(text string) *Progress {
	p := &Progress{}
	_ = json.Unmarshal([]byte(text), &p.marks)
	return p
}

// String returns the marks without the beginnings of lines, which may be long.
func (p *Progress) String() string {
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	marks := make(map[string]Mark, len(p.marks))
	for key, mark := range p.marks {
		mark.Out, mark.Err, mark.Behind = nil, nil, 0
		marks[key] = mark
	}
	text, err := json.Marshal(marks)
	if err != nil {
		return "" // numbers always encode
	}
	return string(text)
}

func (p *Progress) of(stream string) Mark {
	if p == nil {
		return Mark{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.marks[stream]
}

// Note sets the mark of a stream.
func (p *Progress) Note(stream string, mark Mark) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.marks == nil {
		p.marks = map[string]Mark{}
	}
	p.marks[stream] = mark
	if p.noted != nil {
		p.noted(stream, mark)
	}
}
