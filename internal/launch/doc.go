// Package launch is the composition root. It calls the other packages in order:
// each step starts something and has its undo beside it. It also watches what runs.
// What a step does inside belongs to the package that it calls.
//
// These packages import each other only in one direction, as the tables in
// internal/imports allow. All of them may import base, kube may import network,
// and site and access may import job.
//
// Read run.go first: Run lists the steps on the head, in the order of a cluster's
// life. options.go has what it is called with, and runstate.go what the steps
// share. node.go has the steps that every node takes. member.go is the run on the
// other nodes. interrupt.go and down.go end a run, and failover.go continues it on
// another node. up.go, stay.go and use.go are for clusters that outlive their
// command.
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
//   - command runs the user's command.
package launch
