package cluster

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// Spec is what a user asks for on the command line, nothing else.
type Spec struct {
	// Manifests are files with Kubernetes objects; "-" is standard input.
	Manifests []string
	// Images are archives to import: PATH, or NAME=PATH for an archive that
	// carries no name.
	Images []string
	// Command runs on the host beside the cluster; empty follows the
	// manifests' workload instead.
	Command []string
	// NoPull forbids the network to image pulls.
	NoPull bool
	// Registries say where images of a registry are to be had: NAME=URL.
	Registries []string
	// OneUID does without subordinate uids even where there are some.
	OneUID bool
	// StateDir is where the run's directory is made; empty chooses.
	StateDir string
	// AddressBlock is the range of addresses for pods, Services and nodes;
	// empty chooses one that clashes with no route.
	AddressBlock string
	// SharedVolumes is a folder that all nodes see, for volumes that pods of
	// all nodes use together; empty for none.
	SharedVolumes string
	// DebugDir receives logs and rendered configuration for inspection.
	DebugDir string
	// Verbosity is the log level of the components, as klog counts.
	Verbosity int
	Network   Network
	// NodesPerHost is how many Kubernetes nodes each machine is; 0 means one.
	NodesPerHost int
	// NodeWait is how long the nodes of a step wait for each other; 0 means
	// the default.
	NodeWait time.Duration
	// FailFast ends the run when a node is lost.
	FailFast bool
}

// Network is what a user says of the network between the nodes.
type Network struct {
	// Ports is the range of ports on the hosts, such as 21000-28999; empty
	// means the default.
	Ports string
	// Interface is the one that carries the packets of pods between nodes;
	// empty means that through which the nodes' names are reached.
	Interface string
	// Carrier is how packets of pods travel between nodes: "udp", "tcp", or
	// empty for what gets through.
	Carrier string
}

// Validate returns everything that is wrong with a Spec at once.
func (s Spec) Validate() error {
	var problems []error
	if len(s.Manifests) == 0 && len(s.Command) == 0 {
		problems = append(problems, errors.New("nothing to run: give a manifest (-f FILE), a command (-- COMMAND), or both"))
	}
	stdin := 0
	for _, manifest := range s.Manifests {
		if manifest == "-" {
			stdin++
		}
	}
	if stdin > 1 {
		problems = append(problems, errors.New("standard input can be read once: give '-f -' once"))
	}
	for _, image := range s.Images {
		if name, path, named := SplitImage(image); path == "" || named && name == "" {
			problems = append(problems, fmt.Errorf("image %q: give --image ARCHIVE or --image NAME=ARCHIVE", image))
		}
	}
	for _, registry := range s.Registries {
		if _, _, err := SplitRegistry(registry); err != nil {
			problems = append(problems, err)
		}
	}
	if s.AddressBlock != "" {
		if _, err := parseBlock(s.AddressBlock); err != nil {
			problems = append(problems, err)
		}
	}
	if s.NodesPerHost < 0 || s.NodesPerHost > MaxNodes {
		problems = append(problems, fmt.Errorf("%d nodes per host: give 1 to %d", s.NodesPerHost, MaxNodes))
	}
	if s.NodeWait < 0 {
		problems = append(problems, fmt.Errorf("node wait %s: give a time such as 90s or 5m", s.NodeWait))
	}
	if c := s.Network.Carrier; c != "" && c != "udp" && c != "tcp" {
		problems = append(problems, fmt.Errorf("carrier %q: give udp or tcp", c))
	}
	if s.Verbosity < 0 || s.Verbosity > 10 {
		problems = append(problems, fmt.Errorf("verbosity %d: give 0 to 10", s.Verbosity))
	}
	return errors.Join(problems...)
}

// SplitImage splits an --image value into the name given to the image, if any,
// and the archive's path. A path may hold '=': only what looks like an image
// reference is a name.
func SplitImage(value string) (name, path string, named bool) {
	before, after, found := strings.Cut(value, "=")
	if !found || strings.HasPrefix(before, "/") || strings.HasPrefix(before, ".") {
		return "", value, false
	}
	return before, after, true
}

// SplitRegistry splits a --registry value into the registry's name, as images
// have it, and the URL to ask instead.
func SplitRegistry(value string) (name, server string, err error) {
	name, server, _ = strings.Cut(value, "=")
	parsed, err := url.Parse(server)
	if err != nil || name == "" || strings.ContainsAny(name, "/ ") || parsed.Host == "" || parsed.User != nil ||
		parsed.Scheme != "http" && parsed.Scheme != "https" {
		return "", "", fmt.Errorf("registry %q: give --registry NAME=URL, such as --registry registry.site:5000=http://registry.site:5000", value)
	}
	return name, strings.TrimSuffix(server, "/"), nil
}

var invalidNodeName = regexp.MustCompile(`[^a-z0-9.-]+`)

// NodeName makes a host's name a valid Kubernetes node name (an RFC 1123
// subdomain): Slurm allows capitals and underscores, Kubernetes does not.
func NodeName(host string) string {
	name := invalidNodeName.ReplaceAllString(strings.ToLower(host), "-")
	name = strings.Trim(name, "-.")
	if len(name) > 63 { // it becomes a label value too
		name = strings.Trim(name[:63], "-.")
	}
	if name == "" {
		return "node"
	}
	return name
}
