package sited

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/internal/site"
)

func TestAJobDoesWithoutANetworkWhereThatIsAllowed(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		d := &Daemon{config: site.Config{Run: t.TempDir(), OptOut: allowed}, log: slog.New(slog.DiscardHandler)}
		if err := os.Mkdir(filepath.Join(d.config.Run, "declined"), 0o700); err != nil {
			t.Fatal(err)
		}
		if declined, err := d.declined(7); declined || err != nil {
			t.Errorf("before: %v, %v", declined, err)
		}
		if err := d.Decline(7); err != nil {
			t.Fatal(err)
		}
		declined, err := d.declined(7)
		if declined != allowed || (err == nil) != allowed || !allowed && !strings.Contains(err.Error(), "not allowed at this site") {
			t.Errorf("allowed %v: %v, %v", allowed, declined, err)
		}
		for range 2 {
			if err := d.forgetDeclined(7); err != nil {
				t.Error(err)
			}
		}
		if declined, err := d.declined(7); declined || err != nil {
			t.Errorf("afterwards: %v, %v", declined, err)
		}
	}
}
