package launch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
)

// TestNoClusterStartsOnALoginHost also covers compute nodes outside a job. Both
// need the user's request and the site's permission.
func TestNoClusterStartsOnALoginHost(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "slurm.conf")
	if err := os.WriteFile(conf, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	options := Options{
		Spec:   cluster.Spec{Command: []string{"true"}, NodesPerHost: 1},
		Getenv: func(name string) string { return map[string]string{"SLURM_CONF": conf}[name] },
	}
	refused := func(what string, options Options, wants bool, text string) {
		t.Helper()
		err := checkOutside(t.Context(), options, false)
		if errors.Is(err, ErrOutside) != wants || wants && (exitcode.Of(err) != exitcode.Config || !strings.Contains(err.Error(), text)) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("a login host", options, true, "in no allocation")
	if err := checkOutside(t.Context(), options, true); err != nil {
		t.Errorf("in a job: %v", err)
	}
	options.Here = true
	refused("with --here", options, false, "")
	options.HereForbidden = "/etc/berth/config.yaml:2"
	refused("with --here, which is forbidden", options, true, "the site forbids --here (/etc/berth/config.yaml:2)")
	options.Spec = cluster.Spec{NodesPerHost: 1}
	if err := checkOutside(t.Context(), options, false); exitcode.Of(err) != exitcode.Usage {
		t.Errorf("nothing to run: %v", err)
	}
	if _, err := Up(t.Context(), Options{Spec: cluster.Spec{Stay: true, NodesPerHost: 1}, Getenv: options.Getenv}, nil); !errors.Is(err, ErrOutside) {
		t.Errorf("berth up: %v", err)
	}
}
