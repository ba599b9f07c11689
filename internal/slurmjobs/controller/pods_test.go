package controller

import (
	"sync"

	"berth.dev/berth/internal/slurmjobs/kinds"
)

// testShown checks what pods of jobs need: each change of an object, the reason why there is no pod,
// and the proof of the output's path.
func testShown(p *fixture) {
	options := p.options(p.server.Config(p, "admin", "system:masters"))
	var mu sync.Mutex
	changed, problem := map[kinds.Reference]int{}, ""
	options.Changed = func(ref kinds.Reference) {
		mu.Lock()
		defer mu.Unlock()
		changed[ref]++
	}
	options.PodProblem = func(kinds.Reference) string {
		mu.Lock()
		defer mu.Unlock()
		return problem
	}
	options.Seal = func(uid, path string) string { return "seal of " + uid + " " + path }
	setProblem := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		problem = text
	}
	p.run(options)
	object := p.createJob("shown")
	ref := kinds.Reference{Kind: kinds.SlurmJob, Namespace: p.namespace, Name: "shown"}
	sealed := func(s kinds.Status) bool { return s.OutputSeal == "seal of "+string(object.GetUID())+" "+s.Output }
	p.awaitStatus(object, func(s kinds.Status) bool { return s.State == "RUNNING" && sealed(s) })
	setProblem("pod shown-job exists")
	p.awaitStatus(object, func(s kinds.Status) bool { return s.Message == "pod shown-job exists" })
	p.awaitEvent("NoPod")
	setProblem("")
	p.awaitStatus(object, func(s kinds.Status) bool { return s.Message == "" })
	// The end has no path from squeue, so the seal stays.
	p.slurm.set(string(object.GetUID()), func(job *fakeJob) { job.State.State, job.Output = "COMPLETED", "" })
	p.awaitStatus(object, func(s kinds.Status) bool { return s.State == "COMPLETED" && s.Output != "" && sealed(s) })
	mu.Lock()
	defer mu.Unlock()
	if changed[ref] < 2 || len(changed) != 1 {
		p.Errorf("changed: %v", changed)
	}
}
