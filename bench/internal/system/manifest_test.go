package system

import (
	"encoding/json"
	"errors"
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
	text, err := manifest([]Task{task}, objects{image: "i:1", hostNetwork: true, name: "n"})
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
	text, err = manifest([]Task{{Args: []string{"date"}}}, objects{image: "i:1"})
	if all := parts(t, text); err != nil || len(all) != 1 {
		t.Errorf("a pod alone: %s, %v", text, err)
	}
	var unsupported *Unsupported
	if _, err := manifest([]Task{{Folder: Scratch}}, objects{}); !errors.As(err, &unsupported) {
		t.Errorf("a folder of the host that nobody mounts: %v", err)
	}
}

// TestServersOnce: tasks share a server with the same settings, and all servers are in one
// pod.
func TestServersOnce(t *testing.T) {
	task := func(port int, at Where) Task {
		return Task{Args: []string{"client", ServerHere}, Window: true, Server: &Server{Args: []string{"server"}, Port: port, At: at}}
	}
	text, err := manifest([]Task{task(1, InPod), task(1, InService), task(2, InPod)}, objects{image: "i:1", counted: true})
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(text, `"startupProbe"`); n != 2 {
		t.Errorf("%d servers", n)
	}
	for _, want := range []string{`"name":"port-1","port":1`, `"name":"port-2","port":2`, "ahostsv4 bench-server-pod", "ahostsv4 bench-server)", `"status.hostIP"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the manifest lacks %s:\n%s", want, text)
		}
	}
}

// TestUDPServers: the same port of both protocols, each with its own probe.
func TestUDPServers(t *testing.T) {
	text, err := manifest([]Task{
		{Args: []string{"c"}, Window: true, Server: &Server{Args: []string{"a"}, Port: 5004, At: InPod}},
		{Args: []string{"c"}, Window: true, Server: &Server{Args: []string{"b"}, Port: 5004, At: InPod, UDP: true, UDPOnly: true}},
	}, objects{image: "i:1", sameNode: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`{"name":"port-5004","port":5004}`, `{"name":"port-5004-udp","port":5004,"protocol":"UDP"}`, `":138C "`, `"tcpSocket"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the manifest lacks %s:\n%s", want, text)
		}
	}
	if strings.Contains(text, "podAntiAffinity") {
		t.Error("servers are kept off the node that they may be on")
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
