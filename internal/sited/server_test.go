package sited

import "testing"

// Connections that users leave open keep out neither root nor other users.
func TestAUserCannotKeepOthersOut(t *testing.T) {
	var s strangers
	const bob, alice, others = 1001, 1000, 2000
	for range maxOfOne {
		if !s.enter(bob) {
			t.Fatal("bob has fewer connections than one may have")
		}
	}
	if s.enter(bob) {
		t.Error("bob has one more than one may have")
	}
	if !s.enter(alice) {
		t.Error("bob keeps alice out")
	}
	served := maxOfOne + 1
	for uid := uint32(others); s.enter(uid); uid++ {
		served++
	}
	if served != maxStrangers {
		t.Errorf("%d are served, want %d", served, maxStrangers)
	}
	if !s.enter(0) {
		t.Error("they keep root out")
	}
	s.leave(0)
	s.leave(bob)
	if !s.enter(bob) || s.enter(alice) {
		t.Error("there is not one place more than before")
	}
}
