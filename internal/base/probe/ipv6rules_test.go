package probe

import (
	"os"
	"path/filepath"
	"testing"

	"berth.dev/berth/internal/testutil"
)

func TestIPv6RulesAreRefusedWithReason(t *testing.T) {
	testutil.Require(t, testutil.UserNS)
	dir := t.TempDir()
	program := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for path, want := range map[string]string{
		program("takes", "grep -q 'table ip6'"):                                                     "",
		program("refuses", "echo 'Error: No such file or directory\nfib daddr\n^^^^^' >&2; exit 1"): "nft: Error: No such file or directory",
		// For others to find.
		filepath.Join(dir, "absent"): "",
	} {
		if said := RefusedIPv6(t.Context(), path); said != want {
			t.Errorf("%s: %q, want %q", filepath.Base(path), said, want)
		}
	}
}
