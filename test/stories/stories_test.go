// Package stories holds berth's behaviour as its users see it: each file in
// testdata is a session at a shell, one per promise. The stories run as an
// unprivileged user on a host of the bed, with nothing of the checkout but the
// unpacked distribution; scripts/test arranges that.
package stories

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// Where a story finds what it needs, from the environment.
const (
	// envBerth is the unpacked distribution, with bin and libexec.
	envBerth = "BERTH_DIST"
	// envArchive is the archive that the distribution comes as, if there is one.
	envArchive = "BERTH_ARCHIVE"
	// envImages is the directory with image archives.
	envImages = "BERTH_IMAGES"
	// envPrograms is the directory of programs that stories use on the host.
	envPrograms = "BERTH_PROGRAMS"
	// envExamples is the directory of examples.
	envExamples = "BERTH_EXAMPLES"
	// envNeighbours is the folder of other projects' examples.
	envNeighbours = "BERTH_NEIGHBOURS"
	// envShared is a folder that all nodes see, on a host where jobs are
	// submitted.
	envShared = "BERTH_SHARED"
	// envHere is berth's own: clusters start on a compute node outside of a job.
	envHere = "BERTH_HERE"
)

// TestMain catches SIGINT, so that the programs of a story start with its
// default: a shell has what it starts in the background ignore it, and berth
// respects that.
func TestMain(m *testing.M) {
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	os.Exit(m.Run())
}

func TestStories(t *testing.T) {
	dist := os.Getenv(envBerth)
	if dist == "" {
		t.Skipf("%s is not set: 'make test' runs the stories", envBerth)
	}
	deadline, _ := t.Deadline()
	testscript.RunT(storyT{T: t}, testscript.Params{
		Dir:      "testdata",
		Deadline: deadline,
		// testscript's own directory would stay when only some stories run.
		WorkdirRoot:     t.TempDir(),
		ContinueOnError: true,
		Setup: func(env *testscript.Env) error {
			// A user's own environment: the story is a session at a shell.
			env.Setenv("PATH", filepath.Join(dist, "bin")+":"+os.Getenv("PATH"))
			env.Setenv("IMAGES", os.Getenv(envImages))
			env.Setenv("PROGRAMS", os.Getenv(envPrograms))
			env.Setenv("EXAMPLES", os.Getenv(envExamples))
			env.Setenv("NEIGHBOURS", os.Getenv(envNeighbours))
			env.Setenv("DIST", dist)
			env.Setenv("SHARED", os.Getenv(envShared))
			env.Setenv("ARCHIVE", os.Getenv(envArchive))
			env.Setenv("USER", os.Getenv("USER"))
			env.Setenv(envHere, os.Getenv(envHere))
			before, err := snapshot()
			if err != nil {
				return err
			}
			env.Defer(func() {
				if err := before.compare(); err != nil {
					t.Errorf("%s: %v", filepath.Base(env.WorkDir), err)
				}
			})
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":      exits,
			"only-berth": onlyBerth,
			"until":      until,
		},
		Condition: func(condition string) (bool, error) {
			switch condition {
			case "archive":
				return os.Getenv(envArchive) != "", nil
			case "login":
				return os.Getenv(envShared) != "", nil
			case "slurm":
				return os.Getenv("SLURM_CONF") != "" || exists("/etc/slurm/slurm.conf"), nil
			case "subuids":
				return hasSubordinateIDs(), nil
			default:
				return false, fmt.Errorf("unknown condition %q", condition)
			}
		},
	})
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
