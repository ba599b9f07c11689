package main

import (
	"reflect"
	"testing"
)

func TestEnvironment(t *testing.T) {
	got := environment([]string{"PATH=/x", "LD_PRELOAD=/opt/xalt.so", "LD_LIBRARY_PATH=/opt/lib", "LANG=de_DE.UTF-8", "LANGUAGE=de", "LC_TIME=C", "GLIBC_TUNABLES=a=b", "HOME=/root"})
	if want := []string{"PATH=/x", "HOME=/root", "LC_ALL=C"}; !reflect.DeepEqual(got, want) {
		t.Errorf("environment: got %q, want %q", got, want)
	}
}

func TestArguments(t *testing.T) {
	got := arguments("/opt/berth/libexec/berth/lib/nft", []string{"/opt/berth/libexec/berth/nft", "-f", "-"})
	want := []string{"nft", "--inhibit-cache", "--library-path", "/opt/berth/libexec/berth/lib/nft", "--argv0", "nft", "/opt/berth/libexec/berth/lib/nft/nft", "-f", "-"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("arguments: got %q, want %q", got, want)
	}
}
