package sif

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestDescribe(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if _, known, err := Describe(root); known || err != nil {
		t.Errorf("a folder that says nothing: %v, %v", known, err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	for name, text := range map[string]string{
		filepath.Join(dir, environment, "10-docker.sh"): "export A=1 B=\"$A 2\"\n", filepath.Join(dir, labelsFile): `{"a":"b"}`, secret: "export SECRET=1\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	image, known, err := Describe(root)
	if err != nil || !known || image.Config.Labels["a"] != "b" || !slices.Contains(image.Config.Env, "B=1 2") {
		t.Errorf("%+v, %v, %v", image, known, err)
	}
	// A link that leads out of the image is not followed.
	if err := os.Symlink(secret, filepath.Join(dir, environment, "20-out.sh")); err != nil {
		t.Fatal(err)
	}
	if image, _, err := Describe(root); err == nil || slices.Contains(image.Config.Env, "SECRET=1") {
		t.Errorf("%+v, %v", image, err)
	}
}
