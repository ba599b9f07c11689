package berthd

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/site/siteconf"
)

func TestAuditLogRecordsAddresses(t *testing.T) {
	var said strings.Builder
	path := filepath.Join(t.TempDir(), "audit.log")
	a := &audit{path: path, node: "n1", log: slog.New(slog.NewTextHandler(&said, nil)), now: func() time.Time { return time.Unix(100, 0) }}
	job := siteconf.Allocation{Job: 7, UID: 1001, User: "alice", Name: "x\n{", VNI: 4096, Pods: []siteconf.Pod{{Node: "n1", Address: netip.MustParseAddr("10.1.0.2")}}}
	a.write(auditJoined, job, nil)
	// The file is rotated.
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	a.ipv6.Pods = netip.MustParsePrefix("fd42::/96")
	a.write(auditLeft, job, nil)
	a.write(auditRefused, siteconf.Allocation{UID: 1001, User: "alice", Login: "n1"}, errors.New("full"))
	for file, want := range map[string][]auditLine{
		path + ".1": {{Event: "joined", Pod: "7", Job: 7, Name: "x\n{", Network: 4096, Address: "10.1.0.2"}},
		path: {
			{Event: "left", Pod: "7", Job: 7, Name: "x\n{", Network: 4096, Address: "10.1.0.2", IPv6: "fd42::a01:2"},
			{Event: "refused", Pod: "login-1001-n1", Reason: "full"},
		},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if len(lines) != len(want) {
			t.Fatalf("%s: %d lines, want %d", file, len(lines), len(want))
		}
		for i, line := range lines {
			want[i].Time, want[i].Node, want[i].UID, want[i].User = time.Unix(100, 0).UTC(), "n1", 1001, "alice"
			var got auditLine
			if err := json.Unmarshal([]byte(line), &got); err != nil || got != want[i] {
				t.Errorf("%s: %+v, %v, want %+v", file, got, err, want[i])
			}
		}
	}
	a.path = filepath.Join(path, "below-a-file")
	a.write(auditLeft, job, nil)
	if !strings.Contains(said.String(), "write the audit log") {
		t.Errorf("a line is lost in silence: %s", said.String())
	}
}
