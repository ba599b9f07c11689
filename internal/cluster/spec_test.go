package cluster

import (
	"strings"
	"testing"
)

func TestValidateNamesEveryProblem(t *testing.T) {
	err := Spec{Manifests: []string{"-", "-"}, Images: []string{"name="}, Verbosity: 11}.Validate()
	if err == nil {
		t.Fatal("an invalid spec passes")
	}
	for _, want := range []string{"standard input", `"name="`, "verbosity 11"} {
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
		if name, server, err := SplitRegistry(value); err != nil || name != want[0] || server != want[1] {
			t.Errorf("%s: name %q, server %q, %v; want %q", value, name, server, err, want)
		}
	}
	for _, value := range []string{
		"", "docker.io", "=https://a.site", "docker.io=mirror.site", "docker.io=ftp://a.site", "docker.io=https://",
		"a/b=https://a.site", "../x=https://a.site", "docker.io=https://me:secret@a.site",
	} {
		if name, server, err := SplitRegistry(value); err == nil {
			t.Errorf("%q: name %q, server %q, want an error", value, name, server)
		}
	}
}

func TestNodeName(t *testing.T) {
	for host, want := range map[string]string{
		"n1": "n1", "GPU_07": "gpu-07", "node.site.org": "node.site.org", "_": "node",
		strings.Repeat("a", 62) + "-b": strings.Repeat("a", 62),
	} {
		if got := NodeName(host); got != want {
			t.Errorf("%q becomes %q, want %q", host, got, want)
		}
	}
}
