package launch

import "fmt"

// FailedError says that a part of the cluster failed for good.
type FailedError struct {
	name, what, log string
	lines           []string
	// kept: the log outlives the run.
	kept bool
}

func (e *FailedError) Error() string {
	where := "its log is " + e.log
	if !e.kept {
		where = "--debug-dir DIR keeps its log, which ends so"
	}
	text := fmt.Sprintf("%s %s; %s:", e.name, e.what, where)
	for _, line := range e.lines {
		text += "\n    " + line
	}
	return text
}
