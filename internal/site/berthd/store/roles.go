package store

import clientv3 "go.etcd.io/etcd/client/v3"

// Permission is access to a key of etcd, or to all keys from Key up to End.
type Permission struct {
	Key, End string
	Write    bool
}

// Own returns what only this node may write: where its tunnels end, and that it is a gateway.
func Own(node string) []Permission {
	return []Permission{{Key: nodeKey(node), Write: true}, {Key: tunnelKey(node), Write: true}, {Key: GatewaysKey + node, Write: true}}
}

// Shared returns what all nodes may do. They all allocate, so they may write all allocations.
func Shared() []Permission {
	below := func(prefix string, write bool) Permission {
		return Permission{Key: prefix, End: clientv3.GetPrefixRangeEnd(prefix), Write: write}
	}
	return []Permission{
		below(NodesKey, false), below(TunnelsKey, false), below(GatewaysKey, false),
		below(networksKey, true), below(usersKey, true), below(leftKeys, true),
		below(queueKey+"/", true), below(CollectorKey+"/", true),
		{Key: guardKey, Write: true}, {Key: bornKey, Write: true}, {Key: youngKey, Write: true},
	}
}
