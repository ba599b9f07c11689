package berthd

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/site/vxlan"
	"berth.dev/berth/internal/testutil"
)

func TestSessionsBelongToAdoptingJob(t *testing.T) {
	p := &pods{local: map[string]*localPod{}}
	for _, a := range []siteconf.Allocation{{Job: 7, UID: 1001, After: 7}, {Job: 8, UID: 1001, After: 8}, {Job: 9, UID: 1002, After: 9}, {Login: "n1", UID: 1001, After: 10}} {
		p.local[a.ID()] = &localPod{Allocation: a, ready: true}
	}
	p.local["10"] = &localPod{Allocation: siteconf.Allocation{Job: 10, UID: 1001, After: 11}}
	for adopter, want := range map[uint32]string{0: "8", 7: "7", 8: "8", 9: "", 10: "", 11: ""} {
		if id, err := p.choose(1001, adopter); id != want || (err == nil) != (want != "") {
			t.Errorf("adopted by job %d: %q, %v, want %q", adopter, id, err, want)
		}
	}
	if id, err := p.choose(1003, 0); err == nil {
		t.Errorf("without a job: %s", id)
	}
}

// A new daemon knows the pods of the previous one, and removes what belongs to no pod.
func TestPodsOutliveDaemon(t *testing.T) {
	testutil.Require(t, testutil.Root)
	dir := t.TempDir()
	newPods := func() *pods {
		return newDaemon(siteconf.Config{Run: dir}, "n0", netip.Addr{}, nil, nil, slog.New(slog.DiscardHandler)).pods
	}
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := siteconf.Allocation{Job: 7, UID: 1001, After: 3}
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	write("pods/7", string(text))
	write("pods/8", string(text))
	write("pods/9", "no pod")
	for _, kind := range []string{"net", "pid", "resolv"} {
		write(kind+"/7", "")
		write(kind+"/8", "")
	}
	p := newPods()
	if err := p.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if kept, here := p.allocation("7"); !here || kept.After != a.After || p.len() != 1 {
		t.Errorf("kept: %+v, %t, and %d pods in all", kept, here, p.len())
	}
	if jobs, sessions := p.count(); jobs != 1 || sessions != 0 {
		t.Errorf("%d jobs and %d sessions", jobs, sessions)
	}
	if !p.local["7"].loaded || p.watch.users["1001"] != 1 || !p.names.keeps("7", 3) {
		t.Error("the pod has no follower or no names")
	}
	for _, path := range []string{"pods/8", "pods/9", "net/8", "pid/8", "resolv/8"} {
		if _, err := os.Stat(filepath.Join(dir, path)); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	for _, path := range []string{"pods/7", "net/7", "pid/7", "resolv/7"} {
		if _, err := os.Stat(filepath.Join(dir, path)); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if err := p.unmake("7"); err != nil {
			t.Error(err)
		}
	}
	p.take("7")
	if p = newPods(); p.load(t.Context()) != nil || p.len() != 0 {
		t.Errorf("%d pods after the last one has gone", p.len())
	}
}

// One pod whose rules cannot be loaded does not keep berthd of the node from starting, but what it
// marks is not trusted.
func TestPodWithoutMarkIsDistrusted(t *testing.T) {
	testutil.Require(t, testutil.Root)
	for name, nft := range map[string]string{"fails": "exit 1", "hangs": "exec sleep 600"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range []string{"pods", "net", "pid", "resolv"} {
				if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			program := filepath.Join(dir, "nft")
			if err := os.WriteFile(program, []byte("#!/bin/sh\n"+nft+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			address := netip.MustParseAddr("10.128.0.2")
			a := siteconf.Allocation{Job: 7, UID: 1001, After: 3, Pods: []siteconf.Pod{{Node: "n0", Address: address}}}
			text, err := json.Marshal(a)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "pods", "7"), text, 0o600); err != nil {
				t.Fatal(err)
			}
			d := newDaemon(siteconf.Config{Run: dir, NFT: program}, "n0", netip.Addr{}, nil, nil, slog.New(slog.DiscardHandler))
			if err := vxlan.NewNamespace(d.pods.namespace("7"), false); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := vxlan.RemoveNamespace(d.pods.namespace("7")); err != nil {
					t.Error(err)
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if err := d.pods.load(ctx); err != nil {
				t.Fatal(err)
			}
			state, _ := d.network.state()
			if len(state.Networks) != 1 || !state.Networks[0].Local[0].Unmarked {
				t.Errorf("the state trusts the pod: %+v", state.Networks)
			}
		})
	}
}
