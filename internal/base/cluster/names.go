package cluster

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// LongestName is the longest value of a label: a node's name becomes one, too.
const LongestName = 63

// nodeNames names the node of each offer. A node keeps a valid name. If other
// names are changed to the same one, all but the first get a number.
func nodeNames(offers []Offer) []string {
	names := make([]string, len(offers))
	for i, offer := range offers {
		if nodeName(offer.Host) == offer.Host {
			names[i] = offer.Host
		}
	}
	for i, offer := range offers {
		if names[i] != "" {
			continue
		}
		name := nodeName(offer.Host)
		for n := 2; slices.Contains(names, name); n++ {
			end := "-" + strconv.Itoa(n)
			name = nodeName(offer.Host)
			name = strings.TrimRight(name[:min(len(name), LongestName-len(end))], "-.") + end
		}
		names[i] = name
	}
	return names
}

var (
	notInNames = regexp.MustCompile(`[^a-z0-9.]+`)
	// Between two dots there is a letter or digit first and last.
	endOfLabel = regexp.MustCompile(`-*\.[.-]*`)
)

// nodeName makes a host's name a valid Kubernetes node name (an RFC 1123
// subdomain): Slurm allows capitals and underscores, Kubernetes does not.
func nodeName(host string) string {
	name := notInNames.ReplaceAllString(strings.ToLower(host), "-")
	name = endOfLabel.ReplaceAllString(name, ".")
	if len(name) > LongestName {
		name = name[:LongestName]
	}
	if name = strings.Trim(name, "-."); name == "" {
		return "node"
	}
	return name
}
