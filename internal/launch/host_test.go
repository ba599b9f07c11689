package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLibexecIsWhole(t *testing.T) {
	dir := t.TempDir()
	for _, program := range []string{"berth-kube", "berth-sandbox"} {
		if err := checkLibexec(dir); err == nil || !strings.Contains(err.Error(), program) {
			t.Errorf("without %s: %v", program, err)
		}
		if err := os.WriteFile(filepath.Join(dir, program), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := checkLibexec(dir); err != nil {
		t.Error(err)
	}
}
