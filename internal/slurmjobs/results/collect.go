package results

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/utils/ptr"
)

// Collector sends results to pods that mount the volumes of objects.
type Collector struct {
	// Config connects to the API server.
	Config *rest.Config
	// Image is the image of the pods. It contains tar.
	Image string
	// StartTimeout limits the time until a pod runs: its image is pulled, and its volume
	// mounted.
	StartTimeout time.Duration
	// Poll is the time between two looks at a pod.
	Poll time.Duration
}

// Default returns a collector whose timeouts have their defaults.
func Default(config *rest.Config, image string) Collector {
	return Collector{Config: config, Image: image, StartTimeout: 2 * time.Minute, Poll: time.Second}
}

var (
	podsResource   = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	eventsResource = schema.GroupVersionResource{Version: "v1", Resource: "events"}
)

const (
	// PodSuffix follows the name of an object in the name of its pod, as WLM-Operator names
	// such pods.
	PodSuffix = "-job-collect"
	// mountPath is the folder of the volume in the pod.
	mountPath = "/results"
	container = "collect"
	// podDeadline ends a pod whose volume never takes the files.
	podDeadline = 6 * time.Hour
	// maxStderr is the part of a pod's error messages that is kept, in bytes.
	maxStderr = 1 << 10
)

// Collect collects the source into a volume. volume describes it, as in the spec of a pod. The pod
// belongs to the object, so that it is deleted with the object. Collect deletes the pod when it has
// ended. If it returns an error, part of the files may be in the volume.
func (c Collector) Collect(ctx context.Context, object *unstructured.Unstructured, volume map[string]any, source Source) (Summary, error) {
	// Errors of the path are found before there is a pod.
	if file, err := source.open(); err != nil {
		return Summary{}, err
	} else {
		file.Close()
	}
	// -o: the files get the pod's user.
	pod := c.pod(object, PodSuffix, volume, mountPath, "tar", "-x", "-o", "-f", "-", "-C", mountPath)
	var summary Summary
	err := c.withPod(ctx, object, pod, func(pods dynamic.ResourceInterface, pod *unstructured.Unstructured) (err error) {
		summary, err = c.send(ctx, pods, pod, source)
		return err
	})
	return summary, err
}

// withPod creates a pod, calls use when its container runs, and deletes it.
func (c Collector) withPod(ctx context.Context, object, pod *unstructured.Unstructured, use func(dynamic.ResourceInterface, *unstructured.Unstructured) error) error {
	client, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	pods := client.Resource(podsResource).Namespace(object.GetNamespace())
	created, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return replaceOld(ctx, pods, object, pod.GetName())
	case apierrors.IsForbidden(err):
		return fmt.Errorf("create pod %s, which mounts the volume: %w: have the cluster's administrator apply the output of 'berth slurm-jobs setup --results'", pod.GetName(), err)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return &Final{fmt.Errorf("create pod %s, which mounts the volume: %w", pod.GetName(), err)}
	case err != nil:
		return fmt.Errorf("create pod %s, which mounts the volume: %w", pod.GetName(), err)
	}
	defer func() {
		// The context may have ended, and the pod would stay until the object is deleted.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = deletePod(ctx, pods, created)
	}()
	if err := c.awaitStart(ctx, client, pods, created); err != nil {
		return err
	}
	return use(pods, created)
}

// pod returns a pod that mounts a volume and runs a command, which can read its standard input.
func (c Collector) pod(object *unstructured.Unstructured, suffix string, volume map[string]any, path string, command ...any) *unstructured.Unstructured {
	pod := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"spec": map[string]any{
			"restartPolicy": "Never", "automountServiceAccountToken": false, "enableServiceLinks": false, "terminationGracePeriodSeconds": int64(0),
			"activeDeadlineSeconds": int64(podDeadline / time.Second),
			"volumes":               []any{volume},
			"containers": []any{map[string]any{
				"name": container, "image": c.Image, "imagePullPolicy": "IfNotPresent", "stdin": true, "stdinOnce": true,
				"command":         command,
				"resources":       map[string]any{"requests": map[string]any{"cpu": "10m", "memory": "16Mi"}},
				"securityContext": map[string]any{"allowPrivilegeEscalation": false},
				"volumeMounts":    []any{map[string]any{"name": volume["name"], "mountPath": path}},
			}},
		},
	}}
	pod.SetName(object.GetName() + suffix)
	pod.SetNamespace(object.GetNamespace())
	pod.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: object.GetAPIVersion(), Kind: object.GetKind(), Name: object.GetName(), UID: object.GetUID(), Controller: ptr.To(true),
	}})
	return pod
}

// replaceOld deletes the pod of an earlier attempt. It returns an error in any case, so that its
// caller tries again.
func replaceOld(ctx context.Context, pods dynamic.ResourceInterface, object *unstructured.Unstructured, name string) error {
	old, err := pods.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read pod %s: %w", name, err)
	}
	if owner := metav1.GetControllerOf(old); owner == nil || owner.UID != object.GetUID() {
		return fmt.Errorf("pod %s exists, and does not belong to this object: delete it", name)
	}
	if err := deletePod(ctx, pods, old); err != nil {
		return fmt.Errorf("delete pod %s of an earlier attempt: %w", name, err)
	}
	return fmt.Errorf("pod %s of an earlier attempt is being deleted", name)
}

// deletePod deletes a pod, unless it was replaced.
func deletePod(ctx context.Context, pods dynamic.ResourceInterface, pod *unstructured.Unstructured) error {
	uid := pod.GetUID()
	err := pods.Delete(ctx, pod.GetName(), metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &uid}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// get returns the current state of a pod.
func get(ctx context.Context, pods dynamic.ResourceInterface, pod *unstructured.Unstructured) (*corev1.Pod, error) {
	now, err := pods.Get(ctx, pod.GetName(), metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read pod %s: %w", pod.GetName(), err)
	}
	if now.GetUID() != pod.GetUID() {
		return nil, fmt.Errorf("pod %s was replaced", pod.GetName())
	}
	typed := &corev1.Pod{}
	return typed, runtime.DefaultUnstructuredConverter.FromUnstructured(now.Object, typed)
}

// awaitStart waits until the container of a pod runs.
func (c Collector) awaitStart(ctx context.Context, client dynamic.Interface, pods dynamic.ResourceInterface, pod *unstructured.Unstructured) error {
	limit := time.NewTimer(c.StartTimeout)
	defer limit.Stop()
	for {
		now, err := get(ctx, pods, pod)
		if err != nil {
			return err
		}
		switch now.Status.Phase {
		case corev1.PodRunning:
			return nil
		case corev1.PodSucceeded, corev1.PodFailed:
			return fmt.Errorf("pod %s ended before its files were copied: %s", pod.GetName(), describe(now))
		}
		select {
		case <-time.After(c.Poll):
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-limit.C:
			return fmt.Errorf("pod %s, which mounts the volume, does not start: %s", pod.GetName(), c.why(ctx, client, now))
		}
	}
}

// describe returns why a pod does not run, as its status says it.
func describe(pod *corev1.Pod) string {
	for _, container := range pod.Status.ContainerStatuses {
		switch state := container.State; {
		case state.Waiting != nil && state.Waiting.Reason != "ContainerCreating":
			return state.Waiting.Reason + " " + state.Waiting.Message
		case state.Terminated != nil:
			return strings.TrimSpace(fmt.Sprintf("exit code %d %s %s", state.Terminated.ExitCode, state.Terminated.Reason, state.Terminated.Message))
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return condition.Message
		}
	}
	return strings.TrimSpace(pod.Status.Reason + " " + pod.Status.Message)
}

// why returns why a pod does not start. What is wrong with a volume is only in events.
func (c Collector) why(ctx context.Context, client dynamic.Interface, pod *corev1.Pod) string {
	if text := describe(pod); text != "" {
		return text
	}
	events, err := client.Resource(eventsResource).Namespace(pod.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(pod.UID)})
	if err != nil {
		return "read its events: " + err.Error()
	}
	text := "there is no event with a reason"
	for _, item := range events.Items {
		if kind, _, _ := unstructured.NestedString(item.Object, "type"); kind == corev1.EventTypeWarning {
			text, _, _ = unstructured.NestedString(item.Object, "message")
		}
	}
	return text
}

// send sends the source to a running pod, and waits for its end.
func (c Collector) send(ctx context.Context, pods dynamic.ResourceInterface, pod *unstructured.Unstructured, source Source) (Summary, error) {
	executor, err := c.stream(pod, "attach", url.Values{"stdin": {"true"}})
	if err != nil {
		return Summary{}, fmt.Errorf("attach to pod %s: %w", pod.GetName(), err)
	}
	reader, writer := io.Pipe()
	type written struct {
		Summary
		error
	}
	archived := make(chan written, 1)
	go func() {
		summary, err := source.Write(ctx, writer)
		writer.CloseWithError(err)
		archived <- written{summary, err}
	}()
	var stderr tail
	// The stream ends when the container has ended, or when the reader returns an error.
	streamErr := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: reader, Stdout: io.Discard, Stderr: &stderr})
	reader.CloseWithError(errStreamEnded)
	archive := <-archived
	if archive.error != nil && !errors.Is(archive.error, errStreamEnded) {
		return archive.Summary, archive.error
	}
	code, err := c.awaitEnd(ctx, pods, pod)
	switch {
	case err != nil:
		return archive.Summary, errors.Join(streamErr, err)
	case code != 0:
		return archive.Summary, fmt.Errorf("write to the volume: tar in pod %s ended with exit code %d: %s", pod.GetName(), code, stderr.String())
	case archive.error != nil || streamErr != nil:
		// tar does not notice that the end of an archive is missing.
		return archive.Summary, fmt.Errorf("send the results to pod %s: %w", pod.GetName(), errors.Join(archive.error, streamErr))
	}
	return archive.Summary, nil
}

var errStreamEnded = errors.New("the connection to the pod ended")

// stream returns an executor for a subresource of a pod that has streams, as kubectl uses them.
func (c Collector) stream(pod *unstructured.Unstructured, subresource string, query url.Values) (remotecommand.Executor, error) {
	base, _, err := rest.DefaultServerUrlFor(c.Config)
	if err != nil {
		return nil, err
	}
	target := base.JoinPath("api/v1/namespaces", pod.GetNamespace(), "pods", pod.GetName(), subresource)
	for _, name := range []string{"stdout", "stderr"} {
		query.Set(name, "true")
	}
	query.Set("container", container)
	target.RawQuery = query.Encode()
	spdy, err := remotecommand.NewSPDYExecutor(c.Config, http.MethodPost, target)
	if err != nil {
		return nil, err
	}
	websocket, err := remotecommand.NewWebSocketExecutor(c.Config, http.MethodGet, target.String())
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}

// awaitEnd waits until the container of a pod has ended, and returns its exit code.
func (c Collector) awaitEnd(ctx context.Context, pods dynamic.ResourceInterface, pod *unstructured.Unstructured) (int32, error) {
	limit := time.NewTimer(c.StartTimeout)
	defer limit.Stop()
	for {
		now, err := get(ctx, pods, pod)
		if err != nil {
			return 0, err
		}
		for _, status := range now.Status.ContainerStatuses {
			if status.State.Terminated != nil {
				return status.State.Terminated.ExitCode, nil
			}
		}
		if phase := now.Status.Phase; phase == corev1.PodSucceeded || phase == corev1.PodFailed {
			return 0, fmt.Errorf("pod %s ended without an exit code: %s", pod.GetName(), describe(now))
		}
		select {
		case <-time.After(c.Poll):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-limit.C:
			return 0, fmt.Errorf("tar in pod %s does not end", pod.GetName())
		}
	}
}

// tail keeps the last bytes that are written to it.
type tail struct{ bytes.Buffer }

func (t *tail) Write(text []byte) (int, error) {
	n, err := t.Buffer.Write(text)
	if more := t.Len() - maxStderr; more > 0 {
		t.Next(more)
	}
	return n, err
}

// CheckVolume returns an error if the volume of a field, as in the spec of a pod, is not of one of
// the types. The API server would take a volume of an unknown type for an emptyDir.
func CheckVolume(field string, volume map[string]any, types []string) error {
	text, err := json.Marshal(volume)
	if err != nil {
		return err
	}
	var typed corev1.Volume
	if err := json.Unmarshal(text, &typed); err != nil {
		return fmt.Errorf("%s.mount is no volume: %w", field, err)
	}
	for kind := range volume {
		if kind == "name" || slices.Contains(types, kind) {
			continue
		}
		return fmt.Errorf("%s.mount: a volume of type %s is not permitted here: use %s, or start 'berth slurm-jobs' with --results-volume %s if everybody who may create objects may also mount such volumes",
			field, kind, strings.Join(types, ", "), kind)
	}
	return nil
}
