// Package launch is the composition root. It calls the other packages in order:
// each step starts something and has its undo beside it. It also watches what runs.
// The work of a step belongs to the package that it calls.
//
// These packages import each other only in one direction, as the tables in
// internal/imports allow. All of them may import base, kube may import network,
// and site and access may import job.
//
// None of these packages imports launch:
//   - allocation describes the Slurm job, and ends a run on signals;
//   - archive finds image files, and sends them to other nodes;
//   - hostnet opens the sockets between the hosts;
//   - identity makes the keys;
//   - imagecache keeps layers for later runs, and layers serves them;
//   - members connects the nodes;
//   - netrole carries packets of pods, in its own process;
//   - proof authenticates the hosts to each other;
//   - pulls reads the settings for registries;
//   - supervisor starts and restarts the processes;
//   - command runs the user's command;
//   - logrole serves the output of containers;
//   - crash reports a panic of this process.
//
// docs/glossary.md explains the word run.
//
// # Reading order
//
// A file uses those after it, and few before it:
//
//   - commands: submit.go ('berth submit'), cleanup.go ('berth cleanup'), persistentparent.go
//     (the process that keeps a cluster of 'berth up'), usejob.go ('berth run JOB')
//   - the life of a cluster: run.go (the steps on the head, in their order), member.go (on the
//     other nodes), join.go (on nodes of other jobs), endup.go ('berth down'), idle.go (further tasks of a node), failover.go
//     (another node continues a run)
//   - where it runs: up.go ('berth up'), use.go (on a cluster that is up), step.go,
//     ownstep.go and stepguard.go (in a step that berth starts), existing.go and
//     existingcleanup.go (on a cluster that berth has not started)
//   - the end: down.go, interrupt.go (the signals that end a run)
//   - a cluster that stays: stay.go, takeimages.go, seats.go (nodes of other jobs), elastic.go
//     (jobs for pods that wait)
//   - runstate.go (what the steps of a run share), userworkload.go (the objects and the
//     command), slurmjobs.go (Slurm jobs of objects), ownrole.go (a role that calls Slurm's
//     commands), followprocess.go and followrole.go (output)
//   - the steps of every node: node.go, sandbox.go, roles.go, images.go, publish.go, devices.go,
//     metrics.go, crashnotes.go, nodestate.go (what they share)
//   - what these steps call: replicas.go (several control planes), names.go, ksi.go,
//     imagechoice.go, limits.go, addresses.go, mounts.go, fastpath.go, outside.go (hosts outside
//     of a job), statesaver.go, continuity.go (what nodes of other jobs need of the next head)
//   - the base: steps.go (a list of steps), directories.go, debugdir.go, host.go (what this host
//     has), cgroups.go, options.go (the inputs)
package launch
