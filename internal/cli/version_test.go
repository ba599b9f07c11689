package cli

import (
	"bytes"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	var out bytes.Buffer
	version := newVersionCommand()
	version.SetOut(&out)
	version.SetArgs(nil)
	if err := version.Execute(); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.HasPrefix(got, "berth ") || !strings.Contains(got, "\nkubernetes v1.") {
		t.Errorf("berth version: got %q", got)
	}
}

func TestVersionRefusesUnknownOutput(t *testing.T) {
	version := newVersionCommand()
	version.SetArgs([]string{"--output", "yaml"})
	version.SetErr(&bytes.Buffer{})
	if err := version.Execute(); err == nil || !strings.Contains(err.Error(), "text or json") {
		t.Errorf("--output yaml: got error %v", err)
	}
}
