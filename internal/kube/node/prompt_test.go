package node

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/kubelet"
	kubepod "k8s.io/kubernetes/pkg/kubelet/pod"
	"k8s.io/kubernetes/pkg/kubelet/util/queue"
	"k8s.io/kubernetes/pkg/kubelet/volumemanager"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/kubernetes/pkg/volume/util/volumepathhandler"
	"k8s.io/utils/clock"

	"berth.dev/berth/internal/kube/mounter"
)

// These tests check upstream's internals. When one fails after an upgrade, look
// there first.
func TestVolumeManagerIsAsExpected(t *testing.T) {
	if _, err := hidden(reflect.ValueOf(&kubelet.Kubelet{}).Elem(), "volumeManager"); err != nil {
		t.Error(err)
	}
	if err := installPromptVolumes(&kubelet.Kubelet{}); err == nil {
		t.Error("a kubelet without a volume manager was accepted")
	}
	real := volumemanager.NewVolumeManager(true, "n1", kubepod.NewBasicPodManager(), nil, fake.NewClientset(),
		&volume.VolumePluginMgr{}, mounter.New(), hostutil.NewFakeHostUtil(nil), t.TempDir(),
		record.NewFakeRecorder(1), volumepathhandler.NewBlockVolumePathHandler())
	p, err := newPromptVolumes(real)
	if err != nil {
		t.Fatal(err)
	}
	if p.populator == nil || p.reconciler == nil {
		t.Errorf("found %+v", p)
	}
	if readyToUnmount(p.reconciler) {
		t.Error("ready before any pod was seen")
	}
	if _, err := newPromptVolumes(nil); err == nil {
		t.Error("took no volume manager for one")
	}
}

// workers has the field of upstream's pod workers that matters here.
type workers struct {
	kubelet.PodWorkers
	workQueue queue.WorkQueue
}

func TestPodWorkersAreAsExpected(t *testing.T) {
	k := &kubelet.Kubelet{}
	if err := setQueue(k, nil, nil); err == nil {
		t.Error("a kubelet without pod workers was accepted")
	}
	field, err := hidden(reflect.ValueOf(k).Elem(), "podWorkers")
	if err != nil {
		t.Fatal(err)
	}
	w := &workers{workQueue: queue.NewBasicWorkQueue(clock.RealClock{})}
	field.Set(reflect.ValueOf(w))
	looked, done := make(chan types.UID, 2), make(chan types.UID, 2)
	if err := setQueue(k, func(u types.UID) { looked <- u }, func(u types.UID) { done <- u }); err != nil {
		t.Fatal(err)
	}
	w.workQueue.Enqueue("later", time.Hour)
	w.workQueue.Enqueue("now", 0)
	if a, b := <-looked, <-looked; a != "later" || b != "now" {
		t.Errorf("looked at %s and %s", a, b)
	}
	if u := <-done; u != "now" {
		t.Errorf("did %s at once", u)
	}
	if work := w.workQueue.GetWork(); len(work) != 1 || work[0] != "now" {
		t.Errorf("queued: %v", work)
	}
}

func TestHiddenRefuses(t *testing.T) {
	type other struct{ number int }
	for _, v := range []reflect.Value{{}, reflect.ValueOf(3), reflect.ValueOf(&other{}).Elem(), reflect.ValueOf(workers{})} {
		if _, err := hidden(v, "number"); err == nil {
			t.Errorf("hidden(%v) found something", v)
		}
	}
}

// eventRuntime sends three events and ends the stream.
type eventRuntime struct {
	cri.UnimplementedRuntimeServiceServer
}

func (eventRuntime) GetContainerEvents(_ *cri.GetEventsRequest, s cri.RuntimeService_GetContainerEventsServer) error {
	status := func(uid string) *cri.PodSandboxStatus {
		return &cri.PodSandboxStatus{Metadata: &cri.PodSandboxMetadata{Uid: uid}}
	}
	for _, e := range []*cri.ContainerEventResponse{
		{ContainerEventType: cri.ContainerEventType_CONTAINER_CREATED_EVENT, PodSandboxStatus: status("created")},
		{ContainerEventType: cri.ContainerEventType_CONTAINER_STARTED_EVENT, PodSandboxStatus: status("started")},
		{ContainerEventType: cri.ContainerEventType_CONTAINER_STOPPED_EVENT},
		{ContainerEventType: cri.ContainerEventType_CONTAINER_STOPPED_EVENT, PodSandboxStatus: status("stopped")},
	} {
		if err := s.Send(e); err != nil {
			return err
		}
	}
	return nil
}

func TestFollowContainers(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, eventRuntime{})
	go server.Serve(listener)
	defer server.Stop()
	var pods []string
	err = followOnce(t.Context(), socket, func(uid types.UID) { pods = append(pods, string(uid)) })
	if err == nil {
		t.Error("a stream that ended is no error")
	}
	if got := strings.Join(pods, " "); got != "started stopped" {
		t.Errorf("pods that changed: %s", got)
	}
}

func TestFollowContainersStopsOnOldRuntime(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, cri.UnimplementedRuntimeServiceServer{})
	go server.Serve(listener)
	defer server.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	followContainers(ctx, socket, slog.New(slog.DiscardHandler), func(types.UID) { t.Error("something changed") })
	if ctx.Err() != nil {
		t.Error("did not give up")
	}
}
