package berthd

import (
	"testing"

	"berth.dev/berth/internal/site/siteconf"
)

func TestSessionsAreInTheJobThatHasAdoptedThem(t *testing.T) {
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
