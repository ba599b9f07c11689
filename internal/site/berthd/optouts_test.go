package berthd

import (
	"log/slog"
	"os"
	"strings"
	"testing"
)

func TestJobWithoutNetworkWhereAllowed(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		o := &optOuts{dir: t.TempDir(), allowed: allowed, log: slog.New(slog.DiscardHandler)}
		if declined, err := o.covers(7, 1001); declined || err != nil {
			t.Errorf("before: %v, %v", declined, err)
		}
		if err := o.add(7, 1001); err != nil {
			t.Fatal(err)
		}
		declined, err := o.covers(7, 1001)
		if declined != allowed || (err == nil) != allowed || !allowed && !strings.Contains(err.Error(), "not allowed at this site") {
			t.Errorf("allowed %v: %v, %v", allowed, declined, err)
		}
		// The number belongs to another user's job now, and the epilog was lost. Or
		// an earlier berthd wrote the file without a user.
		if declined, err := o.covers(7, 1002); declined || err != nil {
			t.Errorf("for another user: %v, %v", declined, err)
		}
		if err := os.WriteFile(o.file(7), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if declined, _ := o.covers(7, 1001); declined != allowed {
			t.Errorf("allowed %v, said by an earlier daemon: %v", allowed, declined)
		}
		for range 2 {
			if err := o.forget(7); err != nil {
				t.Error(err)
			}
		}
		if declined, err := o.covers(7, 1001); declined || err != nil {
			t.Errorf("afterwards: %v, %v", declined, err)
		}
	}
}
