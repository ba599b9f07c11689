package node

import (
	"encoding/json"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

// leftNotices reads the shim's records of its changes to containers. Without such
// a change a container would not have started, or would have done something
// forbidden. See package bundle of the runtime. A shim cannot create events.
type leftNotices struct {
	dir      string
	recorder record.EventRecorder
}

// left is one of these records.
type left struct {
	Pod     struct{ Namespace, Name, UID, Container string }
	Notices []struct {
		Warning         bool
		Reason, Message string
	}
}

// report makes events from the existing files, and removes the files.
func (l leftNotices) report() {
	paths, _ := filepath.Glob(filepath.Join(l.dir, "*.json"))
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil || os.Remove(path) != nil {
			continue
		}
		var file left
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
			l.recorder.Event(pod, kind, notice.Reason, file.Pod.Container+": "+notice.Message)
		}
	}
}
