package node

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/record"
)

func TestShimNotices(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"1.json": `{"Pod":{"Namespace":"default","Name":"p","UID":"7","Container":"main"},"Notices":[{"Warning":true,"Reason":"ForeignOwnerRefused","Message":"read-only: /data"}]}`,
		"2.json": `{`,
		"3":      `not complete`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	recorder := record.NewFakeRecorder(3)
	for range 2 {
		shimNotices{dir, recorder}.report()
	}
	close(recorder.Events)
	var events []string
	for event := range recorder.Events {
		events = append(events, event)
	}
	if len(events) != 1 || events[0] != "Warning ForeignOwnerRefused main: read-only: /data" {
		t.Errorf("events %q", events)
	}
	if rest, _ := filepath.Glob(dir + "/*"); len(rest) != 1 {
		t.Errorf("files left: %q", rest)
	}
}
