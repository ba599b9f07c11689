package system

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestReadAttached(t *testing.T) {
	const right = "flannel v0.28.10\npod 12 10.244.1.2\npod 34 10.244.1.3\n"
	versions, pods, err := readAttached("flannel", right)
	if err != nil || !maps.Equal(versions, map[string]string{"flannel": "v0.28.10"}) ||
		!slices.Equal(pods, []attached{{"12", "10.244.1.2"}, {"34", "10.244.1.3"}}) {
		t.Errorf("got %v, %v, %v", versions, pods, err)
	}
	for _, wrong := range []string{
		"", "flannel v1\npod 12 10.244.1.2\n", "pod 12 10.244.1.2\npod 34 10.244.1.3\n",
		strings.Replace(right, "12", "-", 1), strings.Replace(right, "10.244.1.3", "nowhere", 1), right + "pod 56 10.244.1.4\n",
	} {
		if _, _, err := readAttached("flannel", wrong); err == nil {
			t.Errorf("%q is taken for two pods", wrong)
		}
	}
}

// TestAttachment: the server starts in one pod and the program in another. A message about
// missing pods has the command that makes them, and unsupported tasks are not tried.
func TestAttachment(t *testing.T) {
	// Programs print their arguments. A server listens until it is ended.
	dir, env := programs(t, map[string]string{
		"nsenter": `while [ "$1" != -- ]; do echo "$1" >>"$DIR/options"; shift; done; shift; exec "$@"`,
		"self": `case "$*" in
*--listening*) echo "$*" >"$DIR/served"; echo berth-bench-listening >&2; exec sleep 1000 ;;
esac
echo "$*"`,
	})
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	a := &attachment{
		unpacked: unpacked{Place{Self: dir + "/bin/self", Archive: dir + "/bin/self", Timeout: time.Minute}}, network: "flannel", way: "host-gw",
		client: attached{"12", "10.245.1.2"}, server: attached{"34", "10.245.2.3"},
	}
	for _, network := range []string{"calico", "flannel"} {
		a.network = network
		if _, err := a.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "make -C test/bench "+network+"'") {
			t.Errorf("nothing is set up: %v", err)
		}
	}
	for _, task := range []Task{
		{Args: []string{"date"}},
		{Args: []string{"iperf3"}, Server: &Server{At: OnHost}},
		{Args: []string{"iperf3"}, Server: &Server{At: InService}},
		{Folder: Scratch, Server: &Server{At: InPod}},
		{Images: &Images{}},
		{Sequence: &Sequence{}},
	} {
		var unsupported *Unsupported
		if _, err := a.Run(t.Context(), task); !errors.As(err, &unsupported) {
			t.Errorf("%+v: %v", task, err)
		}
	}
	out, err := a.Run(t.Context(), Task{
		Args: []string{"iperf3", "-c", ServerHere}, Window: false, Server: &Server{Args: []string{"iperf3", "-s"}, Port: 5003, At: InPod},
	})
	want := "step --image " + a.place.Archive + " --through 7 -- nsenter --target 12 --user --net --preserve-credentials -- iperf3 -c 10.245.2.3\n"
	if err != nil || out.Stdout != want {
		t.Errorf("got %q, %v, want %q", out.Stdout, err, want)
	}
	if served := readFile(t, dir+"/served"); served != "step --listening 5003 --image "+a.place.Archive+" -- iperf3 -s\n" {
		t.Errorf("the server: %q", served)
	}
	if options := readFile(t, dir+"/options"); !strings.Contains(options, "--target\n34\n") {
		t.Errorf("the server's pod: %q", options)
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
