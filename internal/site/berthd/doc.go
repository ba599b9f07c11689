// Package berthd is the daemon of the site network. It answers questions on a local socket,
// keeps the addresses of pods in etcd, and configures this node's kernel through
// internal/site/vxlan, or CNI plugins through internal/site/podcni. Links, routes and rules
// do not belong here, nor does the wire format, which is in internal/site/siteconf.
//
// Read daemon.go and run.go first: a Daemon only connects its parts, and run.go lists
// everything that runs. Then follow a request: questions.go dispatches it to attach.go,
// login.go or naming.go. agree.go reacts to changes in etcd. Each part is one type with its
// own state. From the top, a part uses only parts below it:
//
//   - server: server.go answers clients, within the limits for each user that the package
//     limits keeps.
//   - network: network.go brings the kernel into the state that the pods here need;
//     plugins.go has CNI plugins connect pods.
//   - pods: pods.go keeps the pods of this node, the package pidns their PID namespaces,
//     resolvers.go their resolv.conf, and table.go lists their names for CoreDNS.
//   - watch: watch.go follows the networks that have a pod here, and all networks on some
//     hosts; follower.go mirrors one of them.
//   - sessions: sessions.go keeps which users have sessions on a login host.
//   - opt-outs: optouts.go keeps which jobs want no network.
//   - names: runs.go keeps the names of runs, jobnames.go all names given to jobs here, and
//     nameserver.go runs CoreDNS.
//   - gateways: gateways.go chooses a gateway for each pod, reach.go pings gateways, and
//     announce.go makes this host one.
//   - collector: collect.go frees addresses of jobs that have ended; register.go registers
//     this node.
//   - records: audit.go and metrics.go record what happened.
//   - store: allocate.go allocates addresses in etcd (routed.go where each node has its own
//     subnet), queue.go orders writers that compete, publish.go and names.go write addresses
//     from plugins and names, lease.go keeps what lives with this host, listing.go reads and
//     watches, keys.go has the keys, and refusal.go explains a refused connection.
//
// The commands are in command.go. doctor.go and plugstack.go find what is wrong on a node, and
// etcd.go runs a member of etcd.
package berthd
