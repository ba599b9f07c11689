package cluster

import (
	"strings"
	"testing"
)

func TestValidateNamesEveryProblem(t *testing.T) {
	err := Spec{Manifests: []string{"-", "-"}, Images: []string{"name=", "Not A Name=app.tar"}, NodesPerHost: -1, ResultsImage: "busybox:1.37", Network: Network{IPFamily: "ipv6"}}.Validate()
	if err == nil {
		t.Fatal("an invalid spec passes")
	}
	for _, want := range []string{"standard input", `"name="`, "is not the name of an image", "-1 nodes per host", `"ipv6"`, "--slurm-jobs"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	if err := (Spec{}).Validate(); err == nil || !strings.Contains(err.Error(), "nothing to run") {
		t.Errorf("an empty spec: %v", err)
	}
}

func TestSplitImage(t *testing.T) {
	for value, want := range map[string][2]string{
		"app.tar":                 {"", "app.tar"},
		"/data/a=b.tar":           {"", "/data/a=b.tar"},
		"./a=b.tar":               {"", "./a=b.tar"},
		"site/app:1=app.tar":      {"site/app:1", "app.tar"},
		"app=/data/with=sign.tar": {"app", "/data/with=sign.tar"},
	} {
		if name, path, _ := SplitImage(value); name != want[0] || path != want[1] {
			t.Errorf("%s: name %q, path %q, want %q", value, name, path, want)
		}
	}
}

func TestSplitRegistry(t *testing.T) {
	for value, want := range map[string][2]string{
		"docker.io=https://mirror.site/":         {"docker.io", "https://mirror.site"},
		"reg.site:5000=http://reg.site:5000":     {"reg.site:5000", "http://reg.site:5000"},
		"docker.io=https://harbor.site/v2/a=b/c": {"docker.io", "https://harbor.site/v2/a=b/c"},
	} {
		if name, server, err := splitRegistry(value); err != nil || name != want[0] || server != want[1] {
			t.Errorf("%s: name %q, server %q, %v; want %q", value, name, server, err, want)
		}
	}
	for _, value := range []string{
		"", "docker.io", "=https://a.site", "docker.io=mirror.site", "docker.io=ftp://a.site", "docker.io=https://",
		"a/b=https://a.site", "../x=https://a.site", "docker.io=https://me:secret@a.site",
	} {
		if name, server, err := splitRegistry(value); err == nil {
			t.Errorf("%q: name %q, server %q, want an error", value, name, server)
		}
	}
}

func TestLazyPullNeedsLayersInOneFile(t *testing.T) {
	spec := Spec{Command: []string{"true"}, NodesPerHost: 1, LazyPull: true}
	spec.Snapshotter = Overlay
	if err := spec.Validate(); err == nil || !strings.Contains(err.Error(), "--snapshotter erofs") {
		t.Errorf("with overlayfs: %v", err)
	}
	for _, spec.Snapshotter = range []string{"", autoSnapshotter, EROFS} {
		if err := spec.Validate(); err != nil {
			t.Errorf("with %q: %v", spec.Snapshotter, err)
		}
	}
}

func TestImageCacheOff(t *testing.T) {
	for word, want := range map[string]string{"off": noImageCache, "none": noImageCache, "cache": "/here/cache", "/a/off": "/a/off", "": ""} {
		spec := Spec{Command: []string{"true"}, NodesPerHost: 1, ImageCache: word, Snapshotter: Overlay}
		if err := spec.Validate(); (err == nil) != (want == noImageCache || want == "") {
			t.Errorf("%q with overlayfs: %v", word, err)
		}
		if spec.Absolute("/here"); spec.ImageCache != want {
			t.Errorf("%q became %q, want %q", word, spec.ImageCache, want)
		}
	}
}

func TestImageCacheBytes(t *testing.T) {
	for text, want := range map[string]int64{
		"": ImageCacheBytes, "1M": 1e6, "500M": 5e8, "1.5G": 15e8, "20GB": 2e10, "3T": 3e12, "1000000": 1e6, "2000kB": 2e6,
		"1k": 0, "0": 0, "-5G": 0, "G": 0, "5kM": 0, "nan": 0, "inf": 0, "1e30": 0, "ten": 0, "B": 0, "10 G": 0, "10g": 0,
	} {
		got, err := Spec{ImageCacheLimit: text}.ImageCacheBytes()
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
}
