package limits

import (
	"os"
	"path/filepath"
	"testing"
)

// Connections that users keep open do not block root or other users.
func TestUserCannotLockOthersOut(t *testing.T) {
	var all Clients
	s := entrance{&all}
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
	if served != maxClients {
		t.Errorf("%d are served, want %d", served, maxClients)
	}
	if !s.enter(0) {
		t.Error("they keep root out")
	}
	s.Leave(0)
	s.Leave(bob)
	if !s.enter(bob) || s.enter(alice) {
		t.Error("there is not one place more than before")
	}
}

// entrance hides the first result of enter from tests that never call leave.
type entrance struct{ *Clients }

func (e entrance) enter(uid uint32) bool {
	_, entered := e.Enter(uid)
	return entered
}

// A user with subordinate numbers gets, with all of them and the user's own number,
// as many connections as any other user.
func TestSubordinateNumbersAreOneUser(t *testing.T) {
	path := filepath.Join(t.TempDir(), "subuid")
	number := func(name string) (uint32, bool) { return 1001, name == "bob" }
	all := Clients{subordinates: subordinates{path: path, number: number}}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("# owners\nbob:100000:65536\nodd:0:4294967295\nodd:7\nodd:x:1\n1002:165536:65536\nldap:300000:10\nbob:400000:10\nldap:500000:10\n0:600000:10\n")
	if user, entered := all.Enter(1001); !entered || user != 1001 {
		t.Fatalf("bob is counted as %d, and enters: %t", user, entered)
	}
	for i := range uint32(maxOfOne - 1) {
		if user, entered := all.Enter(100000 + i); !entered || user != 1001 {
			t.Fatalf("number %d is counted as %d, and enters: %t", 100000+i, user, entered)
		}
	}
	for _, another := range []uint32{1001, 165535, 400003} {
		if _, entered := all.Enter(another); entered {
			t.Errorf("%d, another number of bob's, enters", another)
		}
	}
	for other, account := range map[uint32]uint32{1003: 1003, 99999: 99999, 165536: 1002, 231072: 231072, 300009: 300000, 500009: 300000, 600001: 600000} {
		if user, entered := all.Enter(other); !entered || user != account {
			t.Errorf("%d is counted as %d, and enters: %t", other, user, entered)
		}
	}
	write("")
	if user, entered := all.Enter(165535); !entered || user != 165535 {
		t.Errorf("the file is empty: %d is counted as %t", user, entered)
	}
	all.Leave(1001)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if user, entered := all.Enter(100000); !entered || user != 100000 {
		t.Errorf("there is no file: counted as %d, enters: %t", user, entered)
	}
}
