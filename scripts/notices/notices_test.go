package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestLicences(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"apache": {"   Apache License\n  Version 2.0,  January 2004\n", []string{"Apache-2.0"}},
		"bsd2":   {"Redistribution and use in source and binary forms ... Redistributions in binary form must reproduce the above", []string{"BSD-2-Clause"}},
		"bsd3":   {"Redistribution and use in source and binary forms ... Redistributions in binary form must reproduce ... to endorse\nor promote products", []string{"BSD-3-Clause"}},
		"none":   {"All rights reserved.", nil},
	} {
		if got := licences(c.text); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestIsLicence(t *testing.T) {
	for name, want := range map[string]bool{
		"LICENSE": true, "License.md": true, "COPYING.LESSER": true, "NOTICE.txt": true,
		"license.go": false, "main.go": false, "README": false,
	} {
		if got := isLicence(name); got != want {
			t.Errorf("isLicence(%q) = %t", name, got)
		}
	}
}

func TestPURL(t *testing.T) {
	for want, c := range map[string]Component{
		"pkg:golang/k8s.io/api@v0.36.3":                               {Kind: "golang", Name: "k8s.io/api", Version: "v0.36.3"},
		"pkg:golang/x/y@v2.0.0%2Bincompatible":                        {Kind: "golang", Name: "x/y", Version: "v2.0.0+incompatible"},
		"pkg:deb/debian/libgmp10@2%3A6.3.0%2B1?arch=arm64&distro=sid": {Kind: "deb", Name: "libgmp10", Version: "2:6.3.0+1", Arch: "arm64", Suite: "sid"},
		"pkg:generic/go@1.26.8":                                       {Kind: "go", Name: "go", Version: "1.26.8"},
	} {
		if got := c.PURL(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestRun makes the notices of this test program and of a Debian package.
func TestRun(t *testing.T) {
	root := t.TempDir()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"bin/tool":                                string(self),
		"lib/x/VERSIONS":                          "libx 1:2 amd64 trixie\n",
		"lib/x/copyright/libx":                    "On Debian systems see /usr/share/common-licenses/GPL-2.\n",
		"lib/x/copyright/common-licenses/GPL-2":   "the whole of the GPL\n",
		"lib/x/copyright/common-licenses/ignored": "",
	} {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var before []byte
	for range 2 {
		out := t.TempDir()
		if err := run(out, "v1", []string{filepath.Join(root, "bin")}, map[string]string{"lib/x": filepath.Join(root, "lib", "x")}); err != nil {
			t.Fatal(err)
		}
		notices, err := os.ReadFile(filepath.Join(out, "THIRD-PARTY-NOTICES"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"libx 1:2 (GPL-2)", "the whole of the GPL", "golang.org/x/mod v"} {
			if !strings.Contains(string(notices), want) {
				t.Errorf("no %q in the notices", want)
			}
		}
		sbom, err := os.ReadFile(filepath.Join(out, "sbom.cdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid(sbom) {
			t.Error("the bill of materials is no JSON")
		}
		if before != nil && !bytes.Equal(before, sbom) {
			t.Error("two runs differ")
		}
		before = sbom
	}

	if err := os.Remove(filepath.Join(root, "lib/x/copyright/libx")); err != nil {
		t.Fatal(err)
	}
	if err := run(t.TempDir(), "v1", []string{filepath.Join(root, "bin")}, map[string]string{"lib/x": filepath.Join(root, "lib", "x")}); err == nil || !strings.Contains(err.Error(), "libx") {
		t.Errorf("a package without a licence: got %v", err)
	}
}
