package archive

import (
	"slices"
	"strings"
	"testing"

	"github.com/distribution/reference"

	"berth.dev/berth/internal/kube/workload"
)

func TestNameFiles(t *testing.T) {
	objects, err := workload.Read([]string{"-"}, strings.NewReader(`
apiVersion: v1
kind: Pod
metadata: {name: pod}
spec:
  containers:
  - {name: a, image: "sif:train.sif"}
  - {name: b, image: "sif:/work/train.sif"}
  - {name: c, image: "sif:///data/My Own_Image.v2.sif"}
  - {name: d, image: "busybox:1.37"}
  - {name: e, image: "/cvmfs/unpacked.cern.ch/hub/library/python:3.13"}
`))
	if err != nil {
		t.Fatal(err)
	}
	got, err := NameFiles(objects, "/work")
	if err != nil {
		t.Fatal(err)
	}
	var names, paths []string
	for _, image := range got {
		name, path, _ := strings.Cut(image, "=")
		names, paths = append(names, name), append(paths, path)
		if _, err := reference.ParseDockerRef(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if want := []string{"/work/train.sif", "/data/My Own_Image.v2.sif", "/cvmfs/unpacked.cern.ch/hub/library/python:3.13"}; !slices.Equal(paths, want) {
		t.Fatalf("files %q, want %q", paths, want)
	}
	var seen []string
	objects[0].EachImage(func(image string) string {
		seen = append(seen, image)
		return image
	})
	if want := []string{names[0], names[0], names[1], "busybox:1.37", names[2]}; !slices.Equal(seen, want) {
		t.Errorf("images %q, want %q", seen, want)
	}
	for _, path := range []string{"/x/---.sif", "/x/.sif", "/x/" + strings.Repeat("long", 60) + ".sif", "/x/ä.sif"} {
		for _, name := range []string{sifName(path), rootName(path)} {
			if _, err := reference.ParseDockerRef(name); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
}

func TestNameFilesWithoutName(t *testing.T) {
	for _, image := range []string{"sif:", "sif://"} {
		objects, err := workload.Read([]string{"-"}, strings.NewReader(`
apiVersion: v1
kind: Pod
metadata: {name: pod}
spec:
  containers:
  - {name: a, image: "`+image+`"}
`))
		if err != nil {
			t.Fatal(err)
		}
		if images, err := NameFiles(objects, "/work"); len(images) > 0 || err == nil || !strings.Contains(err.Error(), "names no file") {
			t.Errorf("%s: %q, %v", image, images, err)
		}
	}
}
