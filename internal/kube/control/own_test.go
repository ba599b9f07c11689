package control

import (
	"fmt"
	"testing"
)

// The lines are upstream's. Controllers end with them on a busy machine.
func TestLostElectionIsTheReasonOfTheEnd(t *testing.T) {
	for line, lost := range map[string]bool{
		`E1128 05:45:46.462392       8 controllermanager.go:413] "leaderelection lost/stopped"`:                   true,
		`E1128 05:45:48.470057       9 server.go:328] "Leaderelection lost"`:                                      true,
		`E1128 05:45:30.448349       8 leaderelection.go:465] "Error initially creating lease lock" err="exists"`: false,
	} {
		var watcher endWatcher
		fmt.Fprintln(&watcher, line)
		if watcher.lost.Load() != lost {
			t.Errorf("after %s: lost is %v", line, !lost)
		}
	}
}

func TestFatalErrorIsTheReasonOfTheEnd(t *testing.T) {
	const want = `PostStartHook "start-service-ip-repair-controllers" failed: unable to perform initial IP and Port allocation check`
	var watcher endWatcher
	fmt.Fprintln(&watcher, `E1128 13:12:30.000000       8 repair.go:95] "Unhandled Error" err="timed out"`)
	fmt.Fprint(&watcher, "F1128 13:13:20.000000       8 hooks.go:203] "+want+"\n")
	fmt.Fprint(&watcher, "goroutine 1 [running]:\nk8s.io/klog/v2.Fatalf(...)\n")
	if err := watcher.endOf("control"); err.Error() != want {
		t.Errorf("the reason is %q, want %q", err, want)
	}
}
