package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

	"berth.dev/berth/test/interlink/virtualnode"
)

// validation is the last section of a template. It lists conditions that its pods have to
// meet. A name that ends with a hyphen stands for all pods of a Job.
type validation struct {
	CheckPods []struct {
		Name   string          `json:"name"`
		Status corev1.PodPhase `json:"status"`
	} `json:"check_pods"`
	CheckLogs []struct {
		Name      string `json:"name"`
		Container string `json:"container"`
		Regex     string `json:"regex"`
		Operator  string `json:"operator"`
	} `json:"check_logs"`
}

// trial is the run of one template.
type trial struct {
	*plugin
	pods []*corev1.Pod // that were sent
	// attempts holds the number of pods that a Job may still start. It and templates have
	// the name of the pod, or its prefix JOB-, as the key.
	attempts  map[string]int
	templates map[string]*corev1.Pod
	objects   virtualnode.Objects
}

// heading matches the line before the last section of a template.
var heading = regexp.MustCompile(`(?mi)^#+ *validation.*$`)

// render replaces the variables of a Jinja template by the values of the test set's example
// configuration.
func render(text, id string) string {
	return strings.NewReplacer(
		"{{ uuid }}", id,
		"{{ namespace }}", "interlink",
		"{{ target_node }}", "virtual-kubelet",
		"{{ annotations | tojson }}", `{"slurm-job.vk.io/flags": "--job-name=test-pod-cfg -t 2800", "slurm-job.vk.io/image-root": "docker://"}`,
		"{{ tolerations | tojson }}", `[{"key": "virtual-node.interlink/no-schedule", "operator": "Exists", "effect": "NoSchedule"}]`,
	).Replace(text)
}

// newID returns a random ID in the format of a UID.
func newID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // it never fails
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// try runs a template until its pods meet all conditions, and then deletes them. It omits
// checks of logs with the regular expression except.
func (p *plugin) try(ctx context.Context, path, except string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text := render(string(content), newID())
	at := heading.FindStringIndex(text)
	if at == nil {
		return errors.New("the template has no validation section")
	}
	var want validation
	if err := yaml.Unmarshal([]byte(text[at[1]:]), &want); err != nil {
		return fmt.Errorf("read the validation section: %w", err)
	}
	t := &trial{plugin: p, attempts: map[string]int{}, templates: map[string]*corev1.Pod{}, objects: virtualnode.Objects{
		ConfigMaps: map[string]corev1.ConfigMap{"kube-root-ca.crt": {Data: map[string]string{"ca.crt": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}}},
		Secrets:    map[string]corev1.Secret{},
	}}
	if err := t.read(text[:at[0]]); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(t.templates)) {
		if err := t.start(ctx, name); err != nil {
			return err
		}
	}
	if err := t.await(ctx, func() error { return t.check(ctx, want, except) }); err != nil {
		return err
	}
	grace := int64(1) // some containers ignore SIGTERM
	for _, pod := range t.pods {
		var reply string
		pod.DeletionGracePeriodSeconds = &grace
		if err := t.call(ctx, "POST", "/delete", pod, &reply); err != nil {
			return err
		}
	}
	return nil
}

// read reads the objects of a template, and stores the pods in t.templates.
func (t *trial) read(text string) error {
	for _, document := range regexp.MustCompile(`(?m)^---\s*$`).Split(text, -1) {
		var kind struct{ Kind string }
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			return fmt.Errorf("read an object: %w", err)
		}
		var err error
		switch kind.Kind {
		case "":
		case "Pod":
			pod := &corev1.Pod{}
			err = yaml.Unmarshal([]byte(document), pod)
			t.templates[pod.Name] = pod
		case "Job":
			job := &batchv1.Job{}
			err = yaml.Unmarshal([]byte(document), job)
			pod := &corev1.Pod{ObjectMeta: job.Spec.Template.ObjectMeta, Spec: job.Spec.Template.Spec}
			pod.Namespace, pod.Name = job.Namespace, job.Name+"-"
			t.templates[pod.Name] = pod
			t.attempts[pod.Name] = int(*job.Spec.BackoffLimit)
		case "ConfigMap":
			object := corev1.ConfigMap{}
			err = yaml.Unmarshal([]byte(document), &object)
			t.objects.ConfigMaps[object.Name] = object
		case "Secret":
			object := corev1.Secret{}
			err = yaml.Unmarshal([]byte(document), &object)
			object.Data = map[string][]byte{}
			for key, value := range object.StringData {
				object.Data[key] = []byte(value)
			}
			object.StringData = nil
			t.objects.Secrets[object.Name] = object
		default:
			return fmt.Errorf("the kind %s is unknown", kind.Kind)
		}
		if err != nil {
			return fmt.Errorf("read a %s: %w", kind.Kind, err)
		}
	}
	return nil
}

// start sends the pod in t.templates with this name.
func (t *trial) start(ctx context.Context, name string) error {
	pod := t.templates[name].DeepCopy()
	if strings.HasSuffix(name, "-") {
		pod.Name += newID()[:5]
	}
	t.objects.AddToken(pod)
	return t.create(ctx, pod)
}

// create sends a pod twice. The second reply must be the same.
func (t *trial) create(ctx context.Context, pod *corev1.Pod) error {
	pod.UID = types.UID(newID())
	virtualnode.Begin(pod)
	request, err := t.objects.Request(pod)
	if err != nil {
		return err
	}
	var reply, again virtualnode.Created
	if err := t.call(ctx, "POST", "/create", request.ForPlugin(), &reply); err != nil {
		return err
	}
	if err := t.call(ctx, "POST", "/create", request.ForPlugin(), &again); err != nil || again != reply {
		return fmt.Errorf("/create replies %+v, and then %+v: %w", reply, again, err)
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[virtualnode.JobID] = reply.PodJID
	t.pods = append(t.pods, pod)
	return nil
}

// await updates the pods until a check succeeds. It returns the error of the check when ctx
// ends, and a finalError at once.
func (t *trial) await(ctx context.Context, check func() error) error {
	for {
		err := t.update(ctx)
		if err == nil {
			err = check()
		}
		if err == nil {
			return nil
		}
		var final *finalError
		if errors.As(err, &final) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("in %s: %w", limit, err)
		case <-time.After(poll):
		}
	}
}

// finalError wraps an error that is permanent.
type finalError struct{ error }

// update requests the statuses of the pods. If a pod of a Job has failed, it starts the next
// one while attempts are left.
func (t *trial) update(ctx context.Context) error {
	for _, pod := range slices.Clone(t.pods) {
		var replies []virtualnode.Status
		if err := t.call(ctx, "GET", "/status", []*corev1.Pod{pod}, &replies); err != nil {
			return err
		}
		was := pod.Status.Phase
		for _, reply := range replies {
			if err := virtualnode.Update(pod, reply); err != nil {
				return &finalError{err}
			}
		}
		for name := range t.attempts {
			if strings.HasPrefix(pod.Name, name) && was != corev1.PodFailed && pod.Status.Phase == corev1.PodFailed && t.attempts[name] > 0 {
				t.attempts[name]--
				if err := t.start(ctx, name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// named returns the pods with a name of the validation section.
func (t *trial) named(name string) (found []*corev1.Pod) {
	for _, pod := range t.pods {
		if pod.Name == name || strings.HasSuffix(name, "-") && strings.HasPrefix(pod.Name, name) {
			found = append(found, pod)
		}
	}
	return found
}

// check returns an error with the first condition that is not met, or nil.
func (t *trial) check(ctx context.Context, want validation, except string) error {
	for _, check := range want.CheckPods {
		if check.Status == "" {
			check.Status = corev1.PodSucceeded
		}
		for _, pod := range t.named(check.Name) {
			phase := pod.Status.Phase
			err := fmt.Errorf("the phase of %s is %s, not %s: %+v", pod.Name, phase, check.Status, pod.Status.ContainerStatuses)
			if (phase == corev1.PodFailed || phase == corev1.PodSucceeded) && phase != check.Status {
				return &finalError{err}
			}
			if phase != check.Status {
				return err
			}
		}
	}
	for name, left := range t.attempts {
		if left > 0 {
			return fmt.Errorf("%d attempts of %s are left", left, name)
		}
	}
	for _, check := range want.CheckLogs {
		if check.Regex == except {
			continue
		}
		if check.Operator != "Exists" {
			return &finalError{fmt.Errorf("the operator %s is unknown", check.Operator)}
		}
		pattern, err := regexp.Compile(check.Regex)
		if err != nil {
			return &finalError{err}
		}
		pods := t.named(check.Name)
		if len(pods) == 0 {
			return &finalError{fmt.Errorf("there is no pod %s", check.Name)}
		}
		for _, pod := range pods {
			var text string
			if err := t.call(ctx, "GET", "/getLogs", map[string]any{
				"Namespace": pod.Namespace, "PodName": pod.Name, "PodUID": pod.UID, "ContainerName": check.Container, "Opts": map[string]any{},
			}, &text); err != nil {
				return err
			}
			if !pattern.MatchString(text) {
				return fmt.Errorf("the log of %s has no %q: %q", pod.Name, check.Regex, text)
			}
		}
	}
	return nil
}
