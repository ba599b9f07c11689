package nameserver

import (
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/internal/site/nametable"
	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/testutil"
)

// lastingServer records its configuration, and runs as long as its program file
// exists: longer than its life file.
const lastingServer = `#!/bin/sh
cat >"$0.$$"
echo ready >&3
exec 3>&-
while [ -e "$0" ]; do sleep 0.01; done
rm "$0.$$"
`

// served holds the paths that a name server received.
type served struct{ table, life string }

// nodeOfServers is a node where several berthds in turn start name servers.
type nodeOfServers struct {
	t            *testing.T
	program, dir string
	known        map[string]bool
}

func newNodeOfServers(t *testing.T) *nodeOfServers {
	t.Helper()
	testutil.Require(t, testutil.Root) // the program runs as nobody
	top := t.TempDir()
	s := &nodeOfServers{t: t, program: filepath.Join(top, "server"), dir: filepath.Join(top, "names"), known: map[string]bool{}}
	for dir, mode := range map[string]os.FileMode{filepath.Dir(top): 0o755, top: 0o777} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(s.program, []byte(lastingServer), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(s.program); err != nil {
			t.Error(err)
		}
		testutil.Eventually(t, "the name servers end", func() bool { return len(s.reports()) == 0 })
	})
	return s
}

func (s *nodeOfServers) reports() []string {
	reports, err := filepath.Glob(s.program + ".*")
	if err != nil {
		s.t.Fatal(err)
	}
	return reports
}

func (s *nodeOfServers) berthd() *Server {
	return New(siteconf.DNS{Program: s.program}, s.dir, netip.MustParseAddr("127.0.0.1"), slog.New(slog.DiscardHandler), func() {})
}

// started returns the name server that started last.
func (s *nodeOfServers) started() served {
	s.t.Helper()
	for _, path := range s.reports() {
		if s.known[path] {
			continue
		}
		s.known[path] = true
		text, err := os.ReadFile(path)
		if err != nil {
			s.t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "names" {
				return served{fields[1], fields[len(fields)-1]}
			}
		}
		s.t.Fatalf("its table has no names: %s", text)
	}
	s.t.Fatal("no name server was started")
	return served{}
}

// knows checks whether the server would now answer for a cluster's pods.
func (s served) knows(t *testing.T, cluster string) {
	t.Helper()
	text, err := os.ReadFile(s.table)
	if err != nil {
		t.Errorf("read the table of the name server with %s: %v", filepath.Base(s.life), err)
		return
	}
	var known nametable.Table
	if err := json.Unmarshal(text, &known); err != nil || known.Cluster != cluster {
		t.Errorf("the name server with %s has %s, %v, want %s", filepath.Base(s.life), text, err, cluster)
	}
}

func (s served) lives() bool {
	_, err := os.Stat(s.life)
	return err == nil
}

// A name server that is about to end still receives queries, beside its successor.
func TestAllNameServersServeNames(t *testing.T) {
	s := newNodeOfServers(t)
	n := s.berthd()
	apply := func(cluster string) {
		t.Helper()
		var table *nametable.Table
		if cluster != "" {
			table = &nametable.Table{Cluster: cluster, Range: netip.MustParsePrefix("10.1.0.0/24")}
		}
		if err := n.Apply(table); err != nil {
			t.Fatal(err)
		}
	}
	left := func() []os.DirEntry {
		t.Helper()
		left, err := os.ReadDir(s.dir)
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	apply("one")
	first := s.started()
	first.knows(t, "one")
	apply("two")
	first.knows(t, "two")
	apply("")
	if left := left(); len(left) > 0 {
		t.Errorf("without pods there are %v", left)
	}
	apply("three")
	second := s.started()
	first.knows(t, "three")
	second.knows(t, "three")
	if first.lives() || !second.lives() {
		t.Errorf("the first one lives: %t, the second: %t", first.lives(), second.lives())
	}
	n = s.berthd()
	apply("four")
	third := s.started()
	for _, server := range []served{first, second, third} {
		server.knows(t, "four")
	}
	if second.lives() || !third.lives() {
		t.Errorf("the second one lives: %t, the third: %t", second.lives(), third.lives())
	}
	apply("")
	if left := left(); len(left) > 0 {
		t.Errorf("without pods there are %v", left)
	}
}
