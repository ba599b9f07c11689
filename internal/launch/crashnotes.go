package launch

import "berth.dev/berth/internal/launch/crash"

// noteCrash describes what a panic of this process means from now on.
func (n *node) noteCrash(lost string) {
	note := crash.Note{Process: "the supervisor of node " + n.plan.Node.Name, Lost: lost}
	if n.Spec.DebugDir != "" {
		note.Keep = n.dirs.log("panic")
	}
	n.Crash.Note(note)
}

// Values of crash.Note.Lost, which follow the reason of the panic in its sentence.
const (
	lostCluster = ", and the cluster has ended with it: the workload's result and its output that is not printed above are lost"
	lostCode    = " after the end of the cluster: the workload's exit code is lost"
	lostFollow  = ", and what it has applied stays on the cluster: the workload's result and its output that is not printed above are lost"
	lostStep    = ", and the step that it started ends with it: the workload's result is lost"
)
