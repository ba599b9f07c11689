// Package berthd is the daemon of the site network. It answers questions on a local socket,
// keeps the addresses of pods in etcd, and configures this node's kernel through
// internal/site/vxlan, or CNI plugins through internal/site/podcni. Links, routes and rules
// do not belong here, nor does the wire format, which is in internal/site/siteconf.
//
// Read run.go first: it lists everything the daemon runs. Then, by subject:
//
//   - server: server.go answers clients, within limits for each user; audit.go and
//     metrics.go record what happened.
//   - pods: daemon.go attaches and releases pods and applies their state to the kernel;
//     processes.go keeps their PID namespaces; decline.go remembers jobs without a network.
//   - addresses: store.go allocates in etcd, queue.go orders writers that compete,
//     routed.go and plugins.go cover the other ways to get an address, and collect.go
//     frees addresses of jobs that have ended.
//   - watch: follower.go follows the pods of one network, or of all, in etcd.
//   - names: named.go and served.go keep the names users give; names.go runs CoreDNS with
//     the table that resolver.go makes.
//   - sessions: sessions.go counts the sessions of a user; lease.go keeps their addresses.
//   - gateways: gateways.go chooses a gateway for each pod; reach.go pings gateways.
//   - check: doctor.go and plugstack.go find what is wrong on a node.
package berthd
