package control

import (
	"fmt"
	"strings"
	"testing"
)

// The lines are upstream's. Controllers end with them on a busy machine.
func TestLostElectionIsTheReasonOfTheEnd(t *testing.T) {
	const told = "their lease was not renewed for 8s"
	for line, lost := range map[string]bool{
		`E1128 05:45:46.462392       8 controllermanager.go:413] "leaderelection lost/stopped"`:                   true,
		`E1128 05:45:48.470057       9 server.go:328] "Leaderelection lost"`:                                      true,
		`E1128 05:45:30.448349       8 leaderelection.go:465] "Error initially creating lease lock" err="exists"`: false,
	} {
		var election electionWatcher
		fmt.Fprintln(&election, line)
		if err := election.endOf("controllers"); strings.Contains(err.Error(), told) != lost {
			t.Errorf("after %s: %v", line, err)
		}
	}
}
