package system

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/bench/internal/plan"
)

// TestDeliver: the registry and the folder exist as long as they are needed.
func TestDeliver(t *testing.T) {
	images := t.TempDir()
	if err := os.WriteFile(filepath.Join(images, "index.json"), []byte(`{"manifests":[]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	p := Place{Images: images, Shared: t.TempDir()}
	failed := errors.New("failed")
	address := ""
	_, err := p.deliver(t.Context(), Images{WorkerMB: 1}, func(d *delivery) (Output, error) {
		if shards, err := os.ReadDir(filepath.Join(d.folder, "shards")); err != nil || len(shards) != 32 {
			t.Errorf("%d shards, %v", len(shards), err)
		}
		before := d.address
		if err := d.serve(t.Context(), 0); err != nil || d.address == before {
			t.Errorf("another registry at %s: %v", d.address, err)
		}
		d.place.Images = filepath.Join(images, "nothing")
		if err := d.serve(t.Context(), 0); err == nil {
			t.Error("a registry of no folder")
		}
		d.place.Images = images
		if err := d.serve(t.Context(), 0); err != nil {
			t.Errorf("one after another that did not start: %v", err)
		}
		address = "http://" + d.address + "/v2/"
		answer, err := http.Get(address) //nolint:noctx // it is this process that answers
		if err != nil {
			return Output{}, err
		}
		return Output{}, errors.Join(failed, answer.Body.Close())
	})
	if !errors.Is(err, failed) {
		t.Errorf("what failed is not said: %v", err)
	}
	if _, err := p.deliver(t.Context(), Images{}, func(d *delivery) (Output, error) {
		d.place.Images = "/nothing"
		return Output{}, d.serve(t.Context(), 0)
	}); err == nil {
		t.Error("a registry that does not start is no mistake")
	}
	if left, err := os.ReadDir(p.Shared); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if answer, err := http.Get(address); err == nil { //nolint:noctx // nobody answers
		_ = answer.Body.Close()
		t.Error("the registry goes on")
	}
}

// TestOwnAddress: the address is the one on the route to the hosts.
func TestOwnAddress(t *testing.T) {
	own, err := ownAddress()
	if err != nil {
		t.Skip(err)
	}
	for _, hosts := range [][]string{nil, {own}, {"127.0.0.1", "no.such.host.invalid", own}} {
		d := &delivery{place: Place{Hosts: hosts}, images: Images{Nodes: len(hosts)}}
		if got, err := d.ownAddress(t.Context()); err != nil || got != own {
			t.Errorf("to %v: %s, %v, want %s", hosts, got, err, own)
		}
	}
}

// TestDeliverMistakes: a message about a missing file has the command that makes it.
func TestDeliverMistakes(t *testing.T) {
	images := t.TempDir()
	never := func(*delivery) (Output, error) {
		t.Error("it goes on")
		return Output{}, nil
	}
	if _, err := (Place{Images: images}).deliver(t.Context(), Images{}, never); err == nil || !strings.Contains(err.Error(), "make -C test/images paper") {
		t.Errorf("no images: %v", err)
	}
	if err := os.WriteFile(filepath.Join(images, "index.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := (Place{Images: images, Shared: "/nothing"}).deliver(t.Context(), Images{}, never); err == nil || !strings.Contains(err.Error(), "--shared") {
		t.Errorf("no folder: %v", err)
	}
	var unsupported *Unsupported
	if _, err := (Place{Images: images, Hosts: []string{"n1"}}).deliver(t.Context(), Images{Nodes: 2}, never); !errors.As(err, &unsupported) {
		t.Errorf("one host for two nodes: %v", err)
	}
}

// TestOnlyImages: each driver reports which images and programs it does not
// support.
func TestOnlyImages(t *testing.T) {
	for _, k := range kinds() {
		if k.Name == "berth" {
			continue // this driver supports both
		}
		driver, err := New(plan.System{Name: k.Name, Driver: k.Name}, Place{})
		if err != nil {
			t.Fatal(err)
		}
		task := Task{Images: &Images{Fresh: true}}
		if _, err := driver.Run(t.Context(), task); !unsupported(err) {
			t.Errorf("%s delivers to nodes that have nothing: %v", k.Name, err)
		}
	}
	if _, err := (&apptainer{program: "no-such-program"}).Check(context.Background()); err == nil || !strings.Contains(err.Error(), "test/bench/apptainer") {
		t.Errorf("no apptainer: %v", err)
	}
}

// TestImagesAlone: a cluster with other trials gets no images.
func TestImagesAlone(t *testing.T) {
	results := (&berth{}).RunTogether(t.Context(), []Task{{Images: &Images{}}})
	if len(results) != 1 || !unsupported(results[0].Err) {
		t.Errorf("got %+v", results)
	}
}

func unsupported(err error) bool {
	var u *Unsupported
	return errors.As(err, &u)
}

func TestReadTimes(t *testing.T) {
	if times, err := readTimes("1.5\n2\n"); err != nil || len(times) != 2 || times[1].Unix() != 2 {
		t.Errorf("%v, %v", times, err)
	}
	if times, err := readTimes("1.5\nnothing\n"); err == nil {
		t.Errorf("got %v", times)
	}
}
