package system

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func parts(t *testing.T, text string) (all []object) {
	t.Helper()
	for part := range strings.SplitSeq(text, "---\n") {
		if part == "" {
			continue
		}
		var o object
		if err := json.Unmarshal([]byte(part), &o); err != nil {
			t.Fatalf("%s: %v", part, err)
		}
		all = append(all, o)
	}
	return all
}

func TestManifest(t *testing.T) {
	task := Task{
		Args: []string{"fio", "--filename=" + FolderHere + "/f", "it's"}, Folder: Claim,
		Server: &Server{Args: []string{"iperf3", "-s"}, Port: 5003, At: InPod},
	}
	text, err := manifest(task, objects{image: "i:1", hostNetwork: true, name: "n"})
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, o := range parts(t, text) {
		kinds = append(kinds, o["kind"].(string))
	}
	if got := strings.Join(kinds, " "); got != "PersistentVolumeClaim Service Service Deployment Pod" {
		t.Errorf("got %s", got)
	}
	for _, want := range []string{`"clusterIP":"None"`, `"hostNetwork":true`, `/data/f`, `podAntiAffinity`, `"claimName":"n"`, "ClusterFirstWithHostNet"} {
		if !strings.Contains(text, want) {
			t.Errorf("the manifest lacks %s:\n%s", want, text)
		}
	}
	text, err = manifest(Task{Args: []string{"date"}}, objects{image: "i:1"})
	if all := parts(t, text); err != nil || len(all) != 1 {
		t.Errorf("a pod alone: %s, %v", text, err)
	}
	var unsupported *Unsupported
	if _, err := manifest(Task{Folder: Scratch}, objects{}); !errors.As(err, &unsupported) {
		t.Errorf("a folder of the host that nobody mounts: %v", err)
	}
}

// TestByAddress runs what a pod would run, with a look-up of our own.
func TestByAddress(t *testing.T) {
	dir := t.TempDir()
	lookup := filepath.Join(dir, "getent")
	script := "#!/bin/sh\n[ $2 = web ] && printf '10.1.2.3        STREAM web.default\\n10.1.2.3        DGRAM\\n'\n"
	if err := os.WriteFile(lookup, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	argv := byAddress([]string{"printf", "%s|", ServerHere, "it's", "a " + ServerHere + ":80", "$HOME"}, "web")
	command := exec.Command(argv[0], argv[1:]...)
	command.Env = []string{"PATH=" + dir + ":/usr/bin:/bin"}
	out, err := command.CombinedOutput()
	if want := "10.1.2.3|it's|a 10.1.2.3:80|$HOME|"; err != nil || string(out) != want {
		t.Errorf("got %q, %v; want %q", out, err, want)
	}
}

func TestOfMain(t *testing.T) {
	for text, want := range map[string]string{
		"one\ntwo\n": "one\ntwo\n",
		"[bench wait] nothing\n[bench main] {\n[bench-server-1 main] x\n[bench main] }\n": "{\n}\n",
	} {
		if got := ofMain(text); got != want {
			t.Errorf("%q: got %q", text, got)
		}
	}
}
