package launch

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == SlurmJobsArg {
		os.Exit(SlurmJobsRole())
	}
	if len(os.Args) == 2 && os.Args[1] == PersistentParentArg {
		os.Exit(1) // no test starts a cluster
	}
	if len(os.Args) == 2 && os.Args[1] == FollowArg {
		followUntilDefect()
	}
	if len(os.Args) == 2 && os.Args[1] == CleanerArg {
		os.Exit(CleanerRole())
	}
	if len(os.Args) == 2 && os.Args[1] == wordArg {
		os.Exit(recordWord())
	}
	if path := os.Getenv(stepVariable); path != "" {
		if len(os.Args) == 1 {
			runStepToBeKilled()
		}
		recordSignals(path)
	}
	os.Exit(m.Run())
}
