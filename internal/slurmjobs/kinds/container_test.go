package kinds

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

// wlmJob returns a WlmJob with a spec.
func wlmJob(spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "wlm.sylabs.io/v1alpha1", "kind": "WlmJob", "spec": spec}}
}

func TestWlmJob(t *testing.T) {
	request, err := Read(object(t, `
apiVersion: wlm.sylabs.io/v1alpha1
kind: WlmJob
spec:
  image: library://sylabsed/examples/lolcow
  options:
    allowUnsigned: true
    cleanEnv: true
    fakeRoot: true
    ipc: true
    pid: true
    noPrivs: true
    hostName: cow
    binds: ["/data,/scratch/a b:/b", "/data/c:/c:ro"]
  resources: {nodes: 1, cpuPerNode: 4, memPerNode: 2000, wallTime: 90}
  nodeSelector: {wlm.sylabs.io/partition: debug, wlm.sylabs.io/cuda: 10}
`))
	want := Request{
		Partition: "debug", Features: []string{"cuda-10"}, Nodes: 1, TimeLimit: 90 * time.Second,
		Container: &Container{
			Image: "library://sylabsed/examples/lolcow", File: "lolcow_latest.sif", Pull: "library://sylabsed/examples/lolcow",
			HostName: "cow", NoPrivileges: true, CPUs: 4, MemoryMB: 2000,
			Binds: []Bind{{"/data", "/data", false}, {"/scratch/a b", "/b", false}, {"/data/c", "/c", true}},
		},
	}
	if err != nil || !reflect.DeepEqual(request, want) {
		t.Errorf("got %+v %+v, %v; want %+v %+v", request, request.Container, err, want, want.Container)
	}
}

// TestWarningsOfWlmJob: options with another effect than in WLM-Operator are not silent.
func TestWarningsOfWlmJob(t *testing.T) {
	request, err := Read(wlmJob(map[string]any{
		"image": "a.sif", "options": map[string]any{"writable": true, "hostName": "cow"}, "resources": map[string]any{"nodes": 2},
	}))
	if err != nil || request.Container.HostName != "" {
		t.Errorf("got %+v, %v", request.Container, err)
	}
	for i, want := range []string{"spec.options.hostName has no effect", "berth checks no signatures", "spec.options.writable: changes of the image's files are lost"} {
		if len(request.Warnings) != 3 || !strings.HasPrefix(request.Warnings[i], want) {
			t.Errorf("got %q", request.Warnings)
		}
	}
}

func TestImagesOfWlmJobs(t *testing.T) {
	for image, want := range map[string]Container{
		"/apps/a b.sif":              {File: "/apps/a b.sif"},
		"file:///apps/a.sif":         {File: "/apps/a.sif"},
		"images/a.sif":               {File: "images/a.sif"},
		"docker://python:3.13":       {Reference: "docker.io/library/python:3.13"},
		"docker://site:5000/a/b":     {Reference: "site:5000/a/b:latest"},
		"library://lolcow:1.0":       {File: "lolcow_1.0.sif", Pull: "library://lolcow:1.0"},
		"library://a/b/c:sha256.012": {File: "c_sha256.012.sif", Pull: "library://a/b/c:sha256.012"},
		"library://a/b:../../etc/d":  {File: "d_latest.sif", Pull: "library://a/b:../../etc/d"},
	} {
		// Only the last component of a library's reference names a file.
		request, err := Read(wlmJob(map[string]any{"image": image}))
		want.Image = image
		if err != nil || !reflect.DeepEqual(*request.Container, want) {
			t.Errorf("%s: got %+v, %v", image, request.Container, err)
		}
	}
	for image, want := range map[string]string{
		"":                         `spec.image "" names no image`,
		" ":                        `spec.image " " names no image`,
		"docker://":                `spec.image "docker://" names no image`,
		"docker://A --privileged":  `spec.image "docker://A --privileged": invalid reference format`,
		"docker://a\nb":            `spec.image "docker://a\nb": a file name contains no control characters`,
		"a.sif\n#SBATCH --uid=0":   `spec.image "a.sif\n#SBATCH --uid=0": a file name contains no control characters`,
		"a.sif\x00":                `spec.image "a.sif\x00": a file name contains no control characters`,
		"library://a/b/..":         `spec.image "library://a/b/..": give library://ENTITY/COLLECTION/NAME:TAG`,
		"library://a/b/'$(id)'":    `spec.image "library://a/b/'$(id)'": give library://ENTITY/COLLECTION/NAME:TAG`,
		"shub://vsoch/hello-world": `spec.image "shub://vsoch/hello-world": berth has no images of shub://: give the path of a SIF file, or docker://NAME`,
		"instance://" + strings.Repeat("x", 4000): "...",
	} {
		_, err := Read(wlmJob(map[string]any{"image": image}))
		if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 2*maxQuoted {
			t.Errorf("%q: got %v, want %s", image, err, want)
		}
	}
}

func TestProblemsOfWlmJobs(t *testing.T) {
	for name, test := range map[string]struct {
		spec map[string]any
		want string
	}{
		"binds": {
			map[string]any{"options": map[string]any{"binds": []any{"data", "/a:b", "/a/../b", "/a:/", "/a:/b:rw:x", "/a:/b:exec", "/a\n", "/a:/x,/b:/x"}}},
			`spec.options.binds "data": give absolute paths without '..'` + "\n" +
				`spec.options.binds "/a:b": give absolute paths without '..'` + "\n" +
				`spec.options.binds "/a/../b": give absolute paths without '..'` + "\n" +
				`spec.options.binds "/a:/": a bind cannot replace all files of the container` + "\n" +
				`spec.options.binds "/a:/b:rw:x": give SOURCE[:TARGET[:ro]]` + "\n" +
				`spec.options.binds "/a:/b:exec": give SOURCE[:TARGET[:ro]]` + "\n" +
				`spec.options.binds "/a\n": a file name contains no control characters` + "\n" +
				`spec.options.binds "/b:/x": /x is the target of another bind`,
		},
		"options": {
			map[string]any{"options": map[string]any{"app": "foo", "hostName": "Cow; id"}},
			`spec.options.app "foo" is not supported: make an image whose runscript starts the app` + "\n" +
				`spec.options.hostName "Cow; id": give at most 63 lowercase letters, digits and hyphens`,
		},
		"resources": {
			map[string]any{"resources": map[string]any{"nodes": -1, "cpuPerNode": 1 << 20, "wallTime": -5}, "nodeSelector": map[string]any{"wlm.sylabs.io/nodes": 2}},
			"spec.resources.nodes -1: give a whole number from 0 to 65536\n" +
				"spec.resources.cpuPerNode 1048576: give a whole number from 0 to 65536\n" +
				"spec.resources.wallTime -5: give a whole number from 0 to 2147483648\n" +
				"spec.nodeSelector: wlm.sylabs.io/nodes: give the job's size with spec.resources",
		},
	} {
		test.spec["image"] = "a.sif"
		_, err := Read(wlmJob(test.spec))
		if err == nil || err.Error() != test.want {
			t.Errorf("%s: got\n%v\nwant\n%s", name, err, test.want)
		}
	}
}

// FuzzWlmJob: what Read accepts names files and folders in one line, and no target twice.
func FuzzWlmJob(f *testing.F) {
	for _, image := range []string{"a.sif", "library://a/b/c:1", "docker://python:3.13", "file:///a'b\".sif"} {
		f.Add(image, "/a:/b:ro,/c", "cow")
	}
	f.Fuzz(func(t *testing.T, image, bind, host string) {
		fuzzbound.Watch(t)
		text, err := json.Marshal(wlmJob(map[string]any{"image": image, "options": map[string]any{"binds": []any{bind}, "hostName": host}}))
		if err != nil {
			return
		}
		object := &unstructured.Unstructured{}
		if object.UnmarshalJSON(text) != nil {
			return
		}
		request, err := Read(object)
		if err != nil {
			return
		}
		c := request.Container
		if (c.File == "") == (c.Reference == "") || strings.ContainsAny(c.File+c.Reference+c.HostName, "\x00\r\n") || strings.Contains(c.Reference, " ") {
			t.Errorf("%q: got %+v", image, c)
		}
		if c.Pull != "" && strings.ContainsAny(c.File, "/ '\"$`") {
			t.Errorf("%q stands for %q", c.File, image)
		}
		targets := map[string]bool{"/": true}
		for _, bind := range c.Binds {
			if targets[bind.Target] || !strings.HasPrefix(bind.Source, "/") || !strings.HasPrefix(bind.Target, "/") || strings.ContainsAny(bind.Source+bind.Target, "\x00\r\n:") {
				t.Errorf("got %+v", c.Binds)
			}
			targets[bind.Target] = true
		}
	})
}
