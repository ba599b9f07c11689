package store

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/site/siteconf"
)

func nodeKey(node string) string  { return NodesKey + node }
func userKey(owner string) string { return siteconf.Prefix + "users/" + owner }

// networkPrefix returns the prefix of an owner's network, or without an owner of all networks.
func networkPrefix(owner string) string {
	if owner == "" {
		return networksKey
	}
	return networksKey + owner + "/"
}

// podsPart is the part between the owner and the ID in the keys of allocations.
const podsPart = "pods"

func podsKey(a siteconf.Allocation) string { return networkPrefix(a.Owner()) + podsPart + "/" + a.ID() }

// partsOf splits a key of this kind below networks/. It goes by the position between
// slashes, because a group may have any of these names. No part is empty.
func partsOf(key, kind string) ([]string, bool) {
	rest, found := strings.CutPrefix(key, networksKey)
	parts := strings.Split(rest, "/")
	return parts, found && len(parts) > 1 && parts[1] == kind && !slices.Contains(parts, "")
}

// isPods reports whether key holds an allocation. Another version of berthd may write
// other keys beside them, and they must not stop this one.
func isPods(key string) bool {
	parts, found := partsOf(key, podsPart)
	return found && len(parts) == 3
}

// besideOf parses a key that is kept beside an allocation. It returns the
// allocation's ID and revision, and the last part of the key.
func besideOf(key, kind string) (id string, after int64, end string, found bool) {
	parts, found := partsOf(key, kind)
	if !found || len(parts) != 5 {
		return "", 0, "", false
	}
	after, err := strconv.ParseInt(parts[3], 10, 64)
	return parts[2], after, parts[4], err == nil
}

func leftPrefix(a siteconf.Allocation) string { return leftKeys + a.ID() + "/" }
func leftKey(a siteconf.Allocation, node string) string {
	return fmt.Sprintf("%s%d/%s", leftPrefix(a), a.After, node)
}

// atPart is the part after the owner in the keys of addresses that plugins assign.
const atPart = "at"

func atPrefix(a siteconf.Allocation) string {
	return networkPrefix(a.Owner()) + atPart + "/" + a.ID() + "/"
}

const (
	guardKey    = siteconf.Prefix + "guard"
	queueKey    = siteconf.Prefix + "line"
	bornKey     = siteconf.Prefix + "born"
	youngKey    = siteconf.Prefix + "young"
	networksKey = siteconf.Prefix + "networks/"
	leftKeys    = siteconf.Prefix + "left/"
	usersKey    = siteconf.Prefix + "users/"
	NodesKey    = siteconf.Prefix + "nodes/"
	TunnelsKey  = siteconf.Prefix + "tunnels/"
	GatewaysKey = siteconf.Prefix + "gateways/"
	// CollectorKey begins the keys of the election of the node that frees addresses.
	CollectorKey = siteconf.Prefix + "collector"
)

// tunnelKey holds the port of a node's tunnels. It is separate from nodeKey because
// older versions of berthd read that value as an address.
func tunnelKey(node string) string { return TunnelsKey + node }

// parseAtKey parses the key of an address that plugins assigned.
func parseAtKey(key string) (Part, bool) {
	id, after, node, found := besideOf(key, atPart)
	return Part{id, after, node}, found
}

func atKey(a siteconf.Allocation, node string) string {
	return fmt.Sprintf("%s%d/%s", atPrefix(a), a.After, node)
}

// namesPart is between the owner and the rest in the keys of names.
const namesPart = "named"

// namesEnd is the last part of the keys of names. A berthd without support for names takes the last
// part of a deleted key for the ID of a finished job. No job has this ID.
const namesEnd = "names"

func namesPrefix(a siteconf.Allocation) string {
	return networkPrefix(a.Owner()) + namesPart + "/" + a.ID() + "/"
}

// namesKey returns the key of the names of runs on a node, where each node has its own key.
// Without a node it returns the key of the names that the user gave the allocation.
func namesKey(a siteconf.Allocation, node string) string {
	if node != "" {
		node += "/"
	}
	return fmt.Sprintf("%s%d/%s%s", namesPrefix(a), a.After, node, namesEnd)
}

// parseNamesKey parses a key of names.
func parseNamesKey(key string) (Part, bool) {
	if id, after, end, found := besideOf(key, namesPart); found {
		return Part{ID: id, After: after}, end == namesEnd
	}
	key, whole := strings.CutSuffix(key, "/"+namesEnd)
	id, after, node, found := besideOf(key, namesPart)
	return Part{id, after, node}, whole && found
}
