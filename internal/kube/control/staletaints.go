package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	nodeutil "k8s.io/kubernetes/pkg/controller/util/node"
	"k8s.io/kubernetes/pkg/util/taints"
)

// staleTaints drops patches that would mark a ready node as not ready. The node
// controller decides by its cache, which may be old, and then adds the taint to the
// present node (SwapNodeControllerTaint). So a ready node could get a taint, and keep it
// until the controller's next check.
//
// Each such patch has the resource version that it was made from, and kube-apiserver
// refuses it when the node has changed since. So only that version has to be read.
type staleTaints struct{ next http.RoundTripper }

func (s staleTaints) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPatch || path.Dir(r.URL.Path) != "/api/v1/nodes" || r.Body == nil {
		return s.next.RoundTrip(r)
	}
	text, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil {
		return nil, fmt.Errorf("read the patch of a node: %w", err)
	}
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(text))
	var patch corev1.Node
	if err := json.Unmarshal(text, &patch); err != nil || !slices.ContainsFunc(patch.Spec.Taints, meansUnready) {
		return s.next.RoundTrip(r)
	}
	if answer := s.unchanged(r, &patch); answer != nil {
		r.Body.Close()
		return answer, nil
	}
	return s.next.RoundTrip(r)
}

// unchanged returns the node as it is, as the answer to a patch that is to be dropped,
// and nil for any other patch.
func (s staleTaints) unchanged(r *http.Request, patch *corev1.Node) *http.Response {
	get := r.Clone(r.Context())
	get.Method, get.Body, get.GetBody, get.ContentLength = http.MethodGet, nil, nil, 0
	get.Header.Del("Content-Type")
	get.URL.RawQuery = ""
	answer, err := s.next.RoundTrip(get)
	if err != nil {
		return nil // the patch gets the same error
	}
	text, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil || answer.StatusCode != http.StatusOK {
		return nil
	}
	var node corev1.Node
	if err := runtime.DecodeInto(scheme.Codecs.UniversalDeserializer(), text, &node); err != nil || !stale(patch, &node) {
		return nil
	}
	answer.Body = io.NopCloser(bytes.NewReader(text))
	return answer
}

// stale reports whether a patch that was made from this node marks it as not ready,
// though it is ready.
func stale(patch, node *corev1.Node) bool {
	_, ready := nodeutil.GetNodeCondition(&node.Status, corev1.NodeReady)
	return patch.ResourceVersion == node.ResourceVersion && ready != nil && ready.Status == corev1.ConditionTrue &&
		slices.ContainsFunc(patch.Spec.Taints, func(t corev1.Taint) bool {
			return meansUnready(t) && !taints.TaintExists(node.Spec.Taints, &t)
		})
}

func meansUnready(t corev1.Taint) bool {
	return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
}
