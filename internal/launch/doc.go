// Package launch is the composition root. It calls the other packages in order:
// each step starts something and has its undo beside it. It also watches what runs.
// What a step does inside belongs to the package that it calls.
//
// These packages import each other only in one direction, as the tables in
// internal/imports allow. All of them may import base, kube may import network,
// and site and access may import job.
//
// The packages below this one know nothing of a run:
//   - allocation is the Slurm job and the end of a run by signals;
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
//   - crash reports a panic of this process.
//
// # Reading order
//
// A file uses those after it, and few before it:
//
//   - commands: submit.go ('berth submit'), cleanup.go ('berth cleanup'), persistentparent.go
//     (the process that keeps a cluster of 'berth up'), usejob.go ('berth run JOB')
//   - the life of a cluster: run.go (the steps on the head, in their order), member.go (on the
//     other nodes), endup.go ('berth down'), idle.go (further tasks of a node), failover.go
//     (another node continues a run)
//   - where it runs: up.go ('berth up'), use.go (on a cluster that is up), step.go and
//     ownstep.go (in a step that berth starts)
//   - node.go (the steps that every node takes) and down.go (how they are undone)
//   - parts of these steps: replicas.go (several control planes), publish.go and names.go,
//     followrole.go and logrole.go (output), stay.go (a cluster that stays), takeimages.go,
//     images.go and imagechoice.go, ksi.go, devices.go, limits.go, addresses.go, mounts.go,
//     outside.go (hosts outside of a job), fastpath.go, crashnotes.go, debugdir.go,
//     interrupt.go (the signals that end a run), metrics.go, statesaver.go
//   - the base: runstate.go (what the steps share), steps.go (a list of steps), cgroups.go,
//     host.go (what this host has), options.go (the inputs)
package launch
