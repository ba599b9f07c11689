package interlink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	ktesting "k8s.io/client-go/testing"

	"berth.dev/berth/internal/testutil"
	"berth.dev/berth/test/interlink/virtualnode"
)

const uid = "0a1b2c3d-0000-4000-8000-00000000000a"

// fakeFinder is a Finder with one cluster, or none.
type fakeFinder struct {
	mu    sync.Mutex
	api   *fake.Clientset // nil if there is none
	job   string
	lost  chan struct{}
	ended map[string]string
	other *fake.Clientset // the cluster of every other job
	// silent is a job whose cluster does not answer. asked is closed when the server connects to it.
	silent string
	asked  chan struct{}
}

// fakeAPI is the API of a fake cluster, whose watches do not begin with a list.
type fakeAPI struct{ typedcore.CoreV1Interface }

func (fakeAPI) IsWatchListSemanticsUnSupported() bool { return true }

// newFinder returns a Finder with the cluster of job 12.
func newFinder() *fakeFinder {
	f := &fakeFinder{ended: map[string]string{}}
	f.replace("12", "first")
	return f
}

// replace starts another cluster.
func (f *fakeFinder) replace(job, id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.api = fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: types.UID(id)}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("3500m"), corev1.ResourceMemory: resource.MustParse("4Gi"),
				corev1.ResourcePods: resource.MustParse("110"), "nvidia.com/gpu": resource.MustParse("2"),
			},
		}},
		// The node of a Slurm partition runs no pods.
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "slurm-n1-main", Labels: map[string]string{"type": "virtual-kubelet"}}, Status: corev1.NodeStatus{
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64")},
		}},
	)
	f.job = job
	f.lost = make(chan struct{})
}

// end ends the cluster.
func (f *fakeFinder) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.api = nil
	close(f.lost)
}

func (f *fakeFinder) Connect(ctx context.Context, job string) (*Cluster, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if job != "" && job == f.silent {
		f.mu.Unlock()
		close(f.asked)
		<-ctx.Done()
		f.mu.Lock()
		return nil, ctx.Err()
	}
	if job != "" && job != f.job {
		if f.other == nil {
			return nil, errors.New("no answer from job " + job)
		}
		return &Cluster{API: fakeAPI{f.other.CoreV1()}, Job: job, Lost: make(chan struct{}), Close: func() {}}, nil
	}
	if f.api == nil {
		return nil, errors.New("you have no job")
	}
	return &Cluster{API: fakeAPI{f.api.CoreV1()}, Job: f.job, Lost: f.lost, Close: func() {}}, nil
}

func (f *fakeFinder) Ended(_ context.Context, job string) string { return f.ended[job] }

// start returns a server that is connected to the cluster of a Finder.
func start(t *testing.T, f *fakeFinder) *Server {
	t.Helper()
	s := New(f, "baseline", "login1", slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	kept := make(chan struct{})
	go func() { defer close(kept); s.connection.keep(ctx) }()
	t.Cleanup(func() { cancel(); <-kept })
	if f.api != nil {
		if _, err := s.connection.wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// awaitLoss waits until the server has noticed that the cluster is lost.
func awaitLoss(t *testing.T, s *Server) {
	t.Helper()
	testutil.Eventually(t, "the server notices the loss of its cluster", func() bool {
		cluster, _ := s.connection.get()
		return cluster == nil
	})
}

// call sends a request, and returns the code and body of the reply.
func call(t *testing.T, s *Server, method, path string, request any) (int, string) {
	t.Helper()
	content, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	if cluster, _ := s.connection.get(); cluster != nil && path == "/status" {
		awaitCopies(t, cluster)
	}
	recorder := httptest.NewRecorder()
	s.Handler().ServeHTTP(recorder, httptest.NewRequest(method, path, bytes.NewReader(content)))
	return recorder.Code, recorder.Body.String()
}

// awaitCopies waits until the server has the pods of the cluster as they are now.
func awaitCopies(t *testing.T, cluster *connected) {
	t.Helper()
	testutil.Eventually(t, "the server has copies of all pods", func() bool {
		list, err := cluster.API.Pods("").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != len(cluster.pods.ListKeys()) {
			return err != nil // a test makes the API server fail
		}
		for i := range list.Items {
			want, _ := trim(&list.Items[i])
			item, ok, _ := cluster.pods.GetByKey(list.Items[i].Namespace + "/" + list.Items[i].Name)
			if !ok || !reflect.DeepEqual(item, want) {
				return false
			}
		}
		return true
	})
}

// must sends a request that succeeds, and decodes the reply.
func must[T any](t *testing.T, s *Server, method, path string, request any) (reply T) {
	t.Helper()
	code, text := call(t, s, method, path, request)
	if code != http.StatusOK {
		t.Fatalf("%s: %d %s", path, code, text)
	}
	if err := json.Unmarshal([]byte(text), &reply); err != nil {
		t.Fatalf("%s: %v: %s", path, err, text)
	}
	return reply
}

// foreignPod returns a pod of the other cluster that uses most of what interLink sends.
func foreignPod() (*corev1.Pod, virtualnode.Objects) {
	mode := int32(0o400)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train", UID: uid, Labels: map[string]string{"app": "train"}},
		Spec: corev1.PodSpec{
			NodeName: "virtual", SchedulerName: "other", ServiceAccountName: "robot", PriorityClassName: "high",
			NodeSelector:     map[string]string{"kubernetes.io/hostname": "virtual"},
			Tolerations:      []corev1.Toleration{{Key: "virtual-node.interlink/no-schedule", Operator: corev1.TolerationOpExists}},
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "hub"}},
			RestartPolicy:    corev1.RestartPolicyNever,
			InitContainers:   []corev1.Container{{Name: "prepare", Image: "busybox"}},
			Containers: []corev1.Container{{
				Name: "main", Image: "busybox",
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
				Env: []corev1.EnvVar{
					{Name: "PLAIN", Value: `it's "quoted"`},
					{Name: "NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
				},
				VolumeMounts: []corev1.VolumeMount{
					{Name: "config", MountPath: "/config"}, {Name: "keys", MountPath: "/keys"},
					{Name: "all", MountPath: "/all"}, {Name: "scratch", MountPath: "/scratch"},
				},
				ReadinessProbe: &corev1.Probe{PeriodSeconds: 3},
			}},
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Items: []corev1.KeyToPath{{Key: "a", Path: "b/c"}},
				}}},
				{Name: "keys", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "keys", DefaultMode: &mode}}},
				{Name: "all", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ConfigMap: &corev1.ConfigMapProjection{
						LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Items: []corev1.KeyToPath{{Key: "a", Path: "deep/er", Mode: &mode}},
					}},
					{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
						{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.cpu"}},
					}}},
				}}}},
				{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				// No container mounts it, so it does not matter that this cluster lacks it.
				{Name: "claim", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
			},
		},
	}
	objects := virtualnode.Objects{
		ConfigMaps: map[string]corev1.ConfigMap{
			"settings":         {ObjectMeta: metav1.ObjectMeta{Name: "settings", Namespace: "team"}, Data: map[string]string{"a": "line 1\nline 2\n"}},
			"kube-root-ca.crt": {Data: map[string]string{"ca.crt": "certificate\n"}},
		},
		Secrets: map[string]corev1.Secret{"keys": {
			ObjectMeta: metav1.ObjectMeta{Name: "keys", Namespace: "team"}, Type: corev1.SecretTypeSSHAuth, Data: map[string][]byte{"id": {0, 1, 2}},
		}},
	}
	objects.AddToken(pod)
	return pod, objects
}

func requestFor(t *testing.T, pod *corev1.Pod, objects virtualnode.Objects) virtualnode.Create {
	t.Helper()
	request, err := objects.Request(pod)
	if err != nil {
		t.Fatal(err)
	}
	return request
}

// TestRestart checks that a new server finds the pods of the previous one, and notices
// the loss of their cluster, without any file.
func TestRestart(t *testing.T) {
	f := newFinder()
	foreign, objects := foreignPod()
	virtualnode.Begin(foreign)
	reply := must[virtualnode.Created](t, start(t, f), "POST", "/create", requestFor(t, foreign, objects))
	foreign.Annotations = map[string]string{virtualnode.JobID: reply.PodJID}

	s := start(t, f)
	if statuses := must[[]virtualnode.Status](t, s, "GET", "/status", []*corev1.Pod{foreign}); len(statuses) != 1 || statuses[0].JobID != reply.PodJID {
		t.Fatalf("the statuses are %+v", statuses)
	}
	f.end()
	awaitLoss(t, s)
	if statuses := must[[]virtualnode.Status](t, s, "GET", "/status", []*corev1.Pod{foreign}); len(statuses) != 0 {
		t.Errorf("a pod whose job still runs has a status: %+v", statuses)
	}
	f.ended["12"] = "job 12 has ended (TIMEOUT)"
	s = start(t, f)
	statuses := must[[]virtualnode.Status](t, s, "GET", "/status", []*corev1.Pod{foreign})
	if len(statuses) != 1 || !strings.Contains(statuses[0].Containers[0].State.Terminated.Message, "job 12 has ended (TIMEOUT)") {
		t.Fatalf("the statuses are %+v", statuses)
	}
	if err := virtualnode.Update(foreign, statuses[0]); err != nil || foreign.Status.Phase != corev1.PodFailed {
		t.Errorf("the phase is %s, %v", foreign.Status.Phase, err)
	}
	must[string](t, s, "POST", "/delete", foreign)
}

// TestGone checks that a pod that does not exist has failed, unless it may be in another
// running cluster, or was not created yet.
func TestGone(t *testing.T) {
	foreign, _ := foreignPod()
	virtualnode.Begin(foreign)
	for id, want := range map[string]string{
		"":                                       "", // not created yet
		"12/first/interlink-team/train-0a1b2c3d": "deleted in the berth cluster of job 12",
		"12/second/interlink-team/train-0a1b2c3d": "another one was started in the job",
		"11/x/interlink-team/train-0a1b2c3d":      "job 11 has ended (CANCELLED)",
		"10/x/interlink-team/train-0a1b2c3d":      "", // another cluster that runs
		"4711":                                    "not from berth",
		"10/x":                                    "not from berth", // incomplete
		// The pod is a copy of another one, and not created yet.
		"12/first/interlink-team/train-ffffffff":  "",
		"11/x/interlink-other/train-0a1b2c3d":     "",
		"12/first/interlink-team/train-0a1b2c3d/": "",
	} {
		f := newFinder()
		f.ended["11"] = "job 11 has ended (CANCELLED)"
		foreign.Annotations = map[string]string{virtualnode.JobID: id}
		statuses := must[[]virtualnode.Status](t, start(t, f), "GET", "/status", []*corev1.Pod{foreign})
		if want == "" {
			if len(statuses) != 0 {
				t.Errorf("%s: the statuses are %+v", id, statuses)
			}
			continue
		}
		if len(statuses) != 1 || !strings.Contains(statuses[0].Containers[0].State.Terminated.Message, want) {
			t.Errorf("%s: %q is not in %+v", id, want, statuses)
		}
	}
}

// TestGoneIsBounded checks that invented JobIDs do not fill the memory.
func TestGoneIsBounded(t *testing.T) {
	c := newConnection(newFinder(), slog.New(slog.DiscardHandler))
	for i := range 3 * maxAnswers {
		c.gone(t.Context(), nil, strconv.Itoa(i)+"/x/n/p")
	}
	c.gone(t.Context(), nil, strings.Repeat("1", maxJob+1)+"/x/n/p")
	if _, kept := c.ended[strings.Repeat("1", maxJob+1)]; kept {
		t.Error("an answer about a long name is kept")
	}
	if len(c.ended) > maxAnswers {
		t.Errorf("%d answers are kept", len(c.ended))
	}
}

// TestStatusOfOthers checks that other pods have a status if one pod has none, because a
// pod of another origin has its name.
func TestStatusOfOthers(t *testing.T) {
	f := newFinder()
	s := start(t, f)
	bad, objects := foreignPod()
	must[virtualnode.Created](t, s, "POST", "/create", requestFor(t, bad, objects))
	good := bad.DeepCopy()
	good.UID = "ffffffff-0000-4000-8000-00000000000b"
	must[virtualnode.Created](t, s, "POST", "/create", requestFor(t, good, objects))
	if _, err := f.api.CoreV1().Pods("interlink-team").Patch(t.Context(), "train-0a1b2c3d", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"`+labelUID+`":null}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	statuses := must[[]virtualnode.Status](t, s, "GET", "/status", []*corev1.Pod{bad, good})
	if len(statuses) != 2 || statuses[1].UID != string(good.UID) || statuses[1].Containers[0].State.Terminated != nil {
		t.Fatalf("the statuses are %+v", statuses)
	}
	if state := statuses[0].Containers[0].State.Terminated; state == nil || !strings.Contains(state.Message, "is not from interLink's pod") {
		t.Errorf("the first status is %+v", statuses[0])
	}
}

// TestStatusOfMany checks that only pods that are gone cost a request to the API server.
func TestStatusOfMany(t *testing.T) {
	f := newFinder()
	s := start(t, f)
	first, objects := foreignPod()
	var pods []*corev1.Pod
	for i := range 20 {
		pod := first.DeepCopy()
		pod.UID = types.UID(fmt.Sprintf("%08d-0000-4000-8000-00000000000b", i))
		created := must[virtualnode.Created](t, s, "POST", "/create", requestFor(t, pod, objects))
		pod.Annotations = map[string]string{virtualnode.JobID: created.PodJID}
		pods = append(pods, pod)
	}
	local := f.api.CoreV1().Pods("interlink-team")
	if err := local.Delete(t.Context(), "train-00000000", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := local.Patch(t.Context(), "train-00000001", types.MergePatchType, []byte(`{"metadata":{"labels":{"`+labelUID+`":null}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, asked := range [][]*corev1.Pod{pods, pods[:3]} {
		f.api.ClearActions()
		statuses := must[[]virtualnode.Status](t, s, "GET", "/status", asked)
		if len(statuses) != len(asked) {
			t.Fatalf("%d statuses of %d pods", len(statuses), len(asked))
		}
		for i, want := range []string{"the pod was deleted in the berth cluster", "is not from interLink's pod", ""} {
			state := statuses[i].Containers[0].State.Terminated
			if (state != nil) != (want != "") || state != nil && !strings.Contains(state.Message, want) {
				t.Errorf("status %d of %d is %+v, want %q", i, len(asked), statuses[i], want)
			}
		}
		gets := 0
		for _, action := range f.api.Actions() {
			if action.GetVerb() == "get" {
				gets++
			}
		}
		if gets != 1 {
			t.Errorf("%d requests for %d pods, want 1", gets, len(asked))
		}
	}
}

// TestPing checks that the virtual node gets the resources of the cluster, or the reason
// why there is no cluster.
func TestPing(t *testing.T) {
	f := newFinder()
	s := start(t, f)
	want := pingReply{Status: "ok: the berth cluster of job 12", Resources: &resources{
		CPU: "3500m", Memory: "4Gi", Pods: "110", Accelerators: []accelerator{{"nvidia.com/gpu", "2"}},
	}}
	if got := must[pingReply](t, s, "POST", "/pinglink", nil); !reflect.DeepEqual(got, want) {
		t.Errorf("the virtual node gets %+v", got)
	}
	if got := must[pingReply](t, s, "GET", "/status", []*corev1.Pod{}); !reflect.DeepEqual(got, want) {
		t.Errorf("the API server gets %+v", got)
	}
	f.end()
	awaitLoss(t, s)
	if code, text := call(t, s, "POST", "/pinglink", nil); code != http.StatusServiceUnavailable || !strings.Contains(text, "no berth cluster can be reached") {
		t.Errorf("%d %s", code, text)
	}
}

// TestLogs checks that the API server gets the options of a request.
func TestLogs(t *testing.T) {
	f := newFinder()
	s := start(t, f)
	foreign, objects := foreignPod()
	must[virtualnode.Created](t, s, "POST", "/create", requestFor(t, foreign, objects))
	f.api.ClearActions()
	code, text := call(t, s, "GET", "/getLogs", map[string]any{
		"Namespace": "team", "PodName": "train", "PodUID": uid,
		"Opts": map[string]any{"Tail": 5, "Bytes": 100, "Timestamps": true, "Follow": true, "Previous": true, "SinceSeconds": 60, "SinceTime": time.Time{}},
	})
	if code != http.StatusOK || text != "fake logs" {
		t.Errorf("%d %s", code, text)
	}
	var options *corev1.PodLogOptions
	for _, action := range f.api.Actions() {
		if generic, ok := action.(ktesting.GenericAction); ok {
			options = generic.GetValue().(*corev1.PodLogOptions)
		}
	}
	number := func(n int64) *int64 { return &n }
	want := &corev1.PodLogOptions{Container: "main", TailLines: number(5), LimitBytes: number(100), SinceSeconds: number(60), Timestamps: true, Follow: true, Previous: true}
	if !reflect.DeepEqual(options, want) {
		t.Errorf("the options are %+v", options)
	}
	none := logRequest{}.apiOptions()
	if !reflect.DeepEqual(none, &corev1.PodLogOptions{}) {
		t.Errorf("without options they are %+v", none)
	}
	if code, text := call(t, s, "GET", "/getLogs", map[string]any{"Namespace": "team", "PodName": "other", "PodUID": uid}); code != http.StatusNotFound {
		t.Errorf("%d %s", code, text)
	}
}

// TestBadRequests checks that each message names the mistake, and that nothing is created.
func TestBadRequests(t *testing.T) {
	f := newFinder()
	s := start(t, f)
	f.api.ClearActions()
	for _, test := range []struct{ method, path, body, want string }{
		{"POST", "/create", `{"pod":`, "unexpected end of JSON"},
		{"POST", "/create", `[]`, "0 pods instead of one"},
		{"POST", "/create", `{}`, `"" is not the name of a namespace`},
		{"POST", "/create", `{"pod":{"metadata":{"namespace":"a","name":"b","uid":"` + uid + `"}}}`, "it has no container"},
		{"POST", "/delete", `{"metadata":{"namespace":"a","name":"../b","uid":"` + uid + `"}}`, "is not the name of a pod"},
		{"GET", "/status", `[{"metadata":{"namespace":"a","name":"b","uid":"x"}}]`, "is not the UID of a pod"},
		{"GET", "/getLogs", `{"Namespace":"a","PodName":"b","PodUID":"` + uid + `","ContainerName":"/"}`, "is not the name of a container"},
		{"GET", "/getLogs", `{"Namespace":"a","PodName":"b","PodUID":"` + uid + `","Opts":{"Tail":-1}}`, "Tail is -1"},
	} {
		recorder := httptest.NewRecorder()
		s.Handler().ServeHTTP(recorder, httptest.NewRequest(test.method, test.path, strings.NewReader(test.body)))
		text, _ := io.ReadAll(recorder.Body)
		if recorder.Code != http.StatusUnprocessableEntity || !strings.Contains(string(text), test.want) {
			t.Errorf("%s %s: %d %s", test.path, test.body, recorder.Code, text)
		}
	}
	for _, action := range f.api.Actions() {
		if verb := action.GetVerb(); verb != "list" && verb != "watch" { // which need no request
			t.Errorf("the API server was asked: %v", action)
		}
	}
}

// TestLargeRequestIsRefused sends a request that does not end.
func TestLargeRequestIsRefused(t *testing.T) {
	s := start(t, newFinder())
	read := &countedSpaces{}
	recorder := httptest.NewRecorder()
	s.Handler().ServeHTTP(recorder, httptest.NewRequest("POST", "/create", read))
	if recorder.Code != http.StatusUnprocessableEntity || !strings.Contains(recorder.Body.String(), "request body too large") {
		t.Errorf("%d %s", recorder.Code, recorder.Body)
	}
	if read.bytes > maxBody+1 {
		t.Errorf("%d bytes were read", read.bytes)
	}
}

// countedSpaces is a body of spaces without an end.
type countedSpaces struct{ bytes int }

func (c *countedSpaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	c.bytes += len(p)
	return len(p), nil
}
