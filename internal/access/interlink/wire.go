package interlink

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The types of this file have the JSON fields of pkg/interlink/types.go in
// github.com/interlink-hq/interLink at commit f632175701d7 of July 2026. Version 0.5.0
// has all of them except the fields of pingReply. 0.3 and 0.4 send an array with one
// element to /create, and 0.3 does not know initContainers. Virtual nodes up to 0.7.0-pre2
// treat the reply to a ping as text.

// createRequest is the body of /create. interLink's API server sends the contents of
// volumes by container, and the virtual node sends them for the whole pod. The type omits
// the fields for plugins that run a pod as a job script.
type createRequest struct {
	Pod corev1.Pod `json:"pod"`
	// Containers is sent by the API server.
	Containers []containerVolumes `json:"container"`
	// ConfigMaps, Secrets and ProjectedVolumes are sent by the virtual node.
	ConfigMaps       []corev1.ConfigMap `json:"configmaps"`
	Secrets          []corev1.Secret    `json:"secrets"`
	ProjectedVolumes []corev1.ConfigMap `json:"projectedvolumesmaps"`
}

// containerVolumes holds the contents of the volumes that a container mounts.
type containerVolumes struct {
	ConfigMaps       []corev1.ConfigMap `json:"configMaps"`
	Secrets          []corev1.Secret    `json:"secrets"`
	ProjectedVolumes []corev1.ConfigMap `json:"projectedvolumemaps"`
}

// createReply is the reply to /create.
type createReply struct {
	PodUID string `json:"PodUID"`
	PodJID string `json:"PodJID"`
}

// podStatus is the status of one pod in the reply to /status.
type podStatus struct {
	Name           string                   `json:"name"`
	UID            string                   `json:"UID"`
	Namespace      string                   `json:"namespace"`
	JobID          string                   `json:"JID"`
	Containers     []corev1.ContainerStatus `json:"containers"`
	InitContainers []corev1.ContainerStatus `json:"initContainers"`
}

// logRequest is the body of /getLogs.
type logRequest struct {
	Namespace     string     `json:"Namespace"`
	PodUID        string     `json:"PodUID"`
	PodName       string     `json:"PodName"`
	ContainerName string     `json:"ContainerName"`
	Opts          logOptions `json:"Opts"`
}

// logOptions selects a part of a log. Zero values select everything.
type logOptions struct {
	Tail         int64     `json:"Tail"`
	LimitBytes   int64     `json:"Bytes"`
	Timestamps   bool      `json:"Timestamps"`
	Follow       bool      `json:"Follow"`
	Previous     bool      `json:"Previous"`
	SinceSeconds int64     `json:"SinceSeconds"`
	SinceTime    time.Time `json:"SinceTime"`
}

// pingReply is the reply to /pinglink. The virtual node sets its capacity to Resources.
type pingReply struct {
	Status    string     `json:"status"`
	Resources *resources `json:"resources,omitempty"`
}

// resources holds quantities in the format of Kubernetes.
type resources struct {
	CPU          string        `json:"cpu"`
	Memory       string        `json:"memory"`
	Pods         string        `json:"pods"`
	Accelerators []accelerator `json:"accelerators,omitempty"`
}

type accelerator struct {
	ResourceType string `json:"resourceType"`
	Available    string `json:"available"`
}

// podUID matches the UIDs of pods.
var podUID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// checkIdentity returns an error for names that no pod can have in Kubernetes. Local
// names and messages contain these names.
func checkIdentity(namespace, name, uid string) error {
	if len(validation.IsDNS1123Label(namespace)) > 0 {
		return fmt.Errorf("%q is not the name of a namespace", namespace)
	}
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Errorf("%q is not the name of a pod", name)
	}
	if !podUID.MatchString(uid) {
		return fmt.Errorf("%q is not the UID of a pod", uid)
	}
	return nil
}

func checkPod(pod *corev1.Pod) error {
	return checkIdentity(pod.Namespace, pod.Name, string(pod.UID))
}

// readCreate reads the body of /create. It moves the contents of volumes of all
// containers to the fields for the whole pod.
func readCreate(body []byte) (createRequest, error) {
	requests := []createRequest{{}}
	var err error
	if bytes.HasPrefix(bytes.TrimSpace(body), []byte("[")) {
		err = json.Unmarshal(body, &requests)
	} else {
		err = json.Unmarshal(body, &requests[0])
	}
	if err == nil && len(requests) != 1 {
		err = fmt.Errorf("%d pods instead of one", len(requests))
	}
	if err != nil {
		return createRequest{}, fmt.Errorf("read the pod: %w", err)
	}
	request := requests[0]
	if err := checkPod(&request.Pod); err != nil {
		return request, fmt.Errorf("read the pod: %w", err)
	}
	if len(request.Pod.Spec.Containers) == 0 {
		return request, errors.New("read the pod: it has no container")
	}
	for _, container := range request.Containers {
		request.ConfigMaps = append(request.ConfigMaps, container.ConfigMaps...)
		request.Secrets = append(request.Secrets, container.Secrets...)
		request.ProjectedVolumes = append(request.ProjectedVolumes, container.ProjectedVolumes...)
	}
	request.Containers = nil
	return request, nil
}

// readPods reads the body of /status.
func readPods(body []byte) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	if err := json.Unmarshal(body, &pods); err != nil {
		return nil, fmt.Errorf("read the list of pods: %w", err)
	}
	for i := range pods {
		if err := checkPod(&pods[i]); err != nil {
			return nil, fmt.Errorf("read the list of pods: %w", err)
		}
	}
	return pods, nil
}

// readPod reads the body of /delete.
func readPod(body []byte) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := json.Unmarshal(body, pod); err != nil {
		return nil, fmt.Errorf("read the pod: %w", err)
	}
	if err := checkPod(pod); err != nil {
		return nil, fmt.Errorf("read the pod: %w", err)
	}
	return pod, nil
}

// readLogs reads the body of /getLogs.
func readLogs(body []byte) (logRequest, error) {
	var request logRequest
	if err := json.Unmarshal(body, &request); err != nil {
		return request, fmt.Errorf("read the request for a log: %w", err)
	}
	if err := checkIdentity(request.Namespace, request.PodName, request.PodUID); err != nil {
		return request, fmt.Errorf("read the request for a log: %w", err)
	}
	if len(validation.IsDNS1123Label(request.ContainerName)) > 0 && request.ContainerName != "" {
		return request, fmt.Errorf("read the request for a log: %q is not the name of a container", request.ContainerName)
	}
	for name, value := range map[string]int64{"Tail": request.Opts.Tail, "Bytes": request.Opts.LimitBytes, "SinceSeconds": request.Opts.SinceSeconds} {
		if value < 0 {
			return request, fmt.Errorf("read the request for a log: %s is %d", name, value)
		}
	}
	return request, nil
}

// apiOptions returns the options for the API server.
func (r logRequest) apiOptions() *corev1.PodLogOptions {
	orNil := func(value int64) *int64 {
		if value == 0 {
			return nil
		}
		return &value
	}
	options := &corev1.PodLogOptions{
		Container:    r.ContainerName,
		TailLines:    orNil(r.Opts.Tail),
		LimitBytes:   orNil(r.Opts.LimitBytes),
		SinceSeconds: orNil(r.Opts.SinceSeconds),
		Timestamps:   r.Opts.Timestamps,
		Follow:       r.Opts.Follow,
		Previous:     r.Opts.Previous,
	}
	if !r.Opts.SinceTime.IsZero() && r.Opts.SinceSeconds == 0 {
		since := metav1.NewTime(r.Opts.SinceTime)
		options.SinceTime = &since
	}
	return options
}
