package node

import (
	"encoding/json"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

// shimNotices turns the notices of the containerd shim into events of pods, because a shim
// cannot create events. The shim writes a notice when it has changed a container that would
// not have started otherwise, or would have done something forbidden. See package bundle of
// the runtime.
type shimNotices struct {
	// dir is the directory where the shim writes a file for each container.
	dir      string
	recorder record.EventRecorder
}

// noticeFile is the content of a file of the shim.
type noticeFile struct {
	Pod     struct{ Namespace, Name, UID, Container string }
	Notices []struct {
		Warning         bool
		Reason, Message string
	}
}

// report creates the events for all files in the directory, and removes the files. It
// ignores a file that it cannot remove, so that no notice is reported twice.
func (s shimNotices) report() {
	paths, _ := filepath.Glob(filepath.Join(s.dir, "*.json"))
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil || os.Remove(path) != nil {
			continue
		}
		var file noticeFile
		if json.Unmarshal(text, &file) != nil {
			continue
		}
		pod := &v1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: file.Pod.Namespace, Name: file.Pod.Name, UID: types.UID(file.Pod.UID),
			FieldPath: "spec.containers{" + file.Pod.Container + "}",
		}
		for _, notice := range file.Notices {
			kind := v1.EventTypeNormal
			if notice.Warning {
				kind = v1.EventTypeWarning
			}
			s.recorder.Event(pod, kind, notice.Reason, file.Pod.Container+": "+notice.Message)
		}
	}
}
