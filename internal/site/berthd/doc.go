// Package berthd is the daemon of the site network. It answers questions on a local socket,
// keeps the addresses of pods in etcd through the package store, and configures this node's
// kernel through internal/site/vxlan, or CNI plugins through internal/site/podcni. Links, routes
// and rules do not belong here, nor does the wire format, which is in internal/site/siteconf.
//
// The type daemon only connects its parts. Each part is one type with its own state.
//
// docs/glossary.md explains the term site network.
//
// # Reading order
//
// Files use only files that are listed below them:
//
//   - commands: command.go; keyscommand.go for the package keys; doctor.go finds what is wrong on
//     a node, check.go what is wrong in the configuration, and plugstack.go asks Slurm; the
//     package etcd runs a member of etcd.
//   - daemon: run.go lists everything that runs. agree.go reacts to changes in etcd.
//     questions.go dispatches requests, which login.go, naming.go and attach.go execute.
//     register.go registers this node, and daemon.go has the order of mutexes.
//   - service: service.go drains this node while it is ill, and resumes it; slurmnode.go asks and
//     changes Slurm.
//   - collector: collect.go frees addresses of jobs that have ended.
//   - server: server.go answers clients, within the limits for each user that the package
//     limits keeps.
//   - network: network.go brings the kernel into the state that the pods here need;
//     plugins.go has CNI plugins connect pods. refusals.go reports what policy.flows refuses.
//   - pods: table.go lists the names of pods for CoreDNS, pods.go keeps the pods of this node,
//     resolvers.go their resolv.conf, and the package pidns their PID namespaces.
//   - watch: watch.go follows the networks that have a pod here, and all networks on some
//     hosts; follower.go mirrors one of them.
//   - sessions: sessions.go tracks which users have sessions on a login host.
//   - opt-outs: optouts.go records which jobs want no network.
//   - names: runs.go keeps the names of runs, jobnames.go all names given to jobs here, and the
//     package nameserver runs CoreDNS.
//   - records: audit.go and metrics.go record what happened.
//
// The package gateway chooses a gateway for each pod, and the package store keeps in etcd what
// all nodes share.
package berthd
