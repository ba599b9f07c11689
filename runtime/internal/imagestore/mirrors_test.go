package imagestore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMirrorsKeepExistingFiles(t *testing.T) {
	dir := t.TempDir()
	named := filepath.Join(dir, "reg.test:5000")
	if err := os.Mkdir(named, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(named, "hosts.toml"), []byte("server = \"http://reg.test:5000\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	m := Mirrors{Dir: dir, Address: "127.0.0.1:1"}
	for _, image := range []string{"busybox", "docker.io/library/web:1", "reg.test:5000/a/b:1", "busybox"} {
		if err := m.Add(image); err != nil {
			t.Error(err)
		}
	}
	for registry, want := range map[string]string{
		"docker.io":     "\n[host.\"http://127.0.0.1:1\"]\n  capabilities = [\"pull\", \"resolve\"]\n",
		"reg.test:5000": "server = \"http://reg.test:5000\"\n\n[host.\"http://127.0.0.1:1\"]\n  capabilities = [\"pull\", \"resolve\"]\n",
	} {
		got, err := os.ReadFile(filepath.Join(dir, registry, "hosts.toml"))
		if err != nil || string(got) != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", registry, err, got, want)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("directories: %v, %v", left, err)
	}
	if err := m.Add("Not A Name"); err == nil || !strings.Contains(err.Error(), "Not A Name") {
		t.Errorf("an invalid name: %v", err)
	}
}
