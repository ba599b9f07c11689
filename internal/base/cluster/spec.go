package cluster

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/distribution/reference"
)

// Spec holds the options that the user gave on the command line.
type Spec struct {
	// Manifests are files with Kubernetes objects; "-" is standard input.
	Manifests []string
	// Images are archives to import: PATH, or NAME=PATH for an archive that
	// contains no name of an image.
	Images []string
	// Command runs on the host beside the cluster. If it is empty, the run
	// follows the workload of the manifests.
	Command []string
	// Logs selects the objects whose output is followed, such as "job/main",
	// "app=web" or "none"; empty selects the objects that end by themselves.
	Logs []string
	// NoPull disables image pulls from the network.
	NoPull bool
	// Registries lists mirrors of registries: NAME=URL.
	Registries []string
	// Snapshotter selects how nodes keep image layers: Overlay, EROFS or
	// autoSnapshotter, which is the default.
	Snapshotter string
	// ImageCache is a folder of layers that a user's nodes and runs share. If it
	// is empty, berth chooses one; noImageCache disables it. A node with Overlay
	// uses none.
	ImageCache string
	// ImageCacheLimit limits the cache's size, such as 20G; empty means
	// ImageCacheBytes.
	ImageCacheLimit string
	// ImageBudget multiplies the limits on what an image may contain; 0 means 1.
	ImageBudget int
	// LazyPull starts containers of eStargz images before the images are
	// complete. A node with Overlay pulls the whole image first.
	LazyPull bool
	// OneUID maps only the user's own uid, even where subordinate uids exist.
	OneUID bool
	// StateDir is the parent of the run's directory; empty means that berth
	// chooses.
	StateDir string
	// AddressBlock is the range of addresses for pods, Services and nodes. If it
	// is empty, berth chooses one that overlaps no route.
	AddressBlock string
	// SharedVolumes is a folder that all nodes see, for volumes that pods on
	// different nodes share; empty for none.
	SharedVolumes string
	// Mounts lists folders of the host for every pod; see ParseMount.
	Mounts []string
	// ForeignOwners lets non-root users in pods write to network file systems,
	// where their files belong to subordinate ids.
	ForeignOwners bool
	// Devices lists device files that pods can request; see ParseDevice.
	Devices []string
	// Publish lists ports of the nodes to open on their hosts:
	// [NAME=][ADDRESS:]PORT[:PORT].
	Publish []string
	// DebugDir receives logs and rendered configuration for inspection.
	DebugDir string
	Network  Network
	// NodesPerHost is the number of Kubernetes nodes on each machine.
	NodesPerHost int
	// PodsPerNode limits the pods of each node, and so the addresses that a node takes;
	// 0 means the default.
	PodsPerNode int
	// Join is the job whose cluster this node joins. If it is not empty, no cluster is
	// started.
	Join string
	// For makes the nodes of this job run only pods that select this value of ForLabel.
	For string
	// Seats is the number of nodes of other jobs that may join the cluster.
	Seats int
	// HeadWait limits how long a node of another job goes on without the head of its cluster.
	HeadWait time.Duration
	// Kept holds the addresses of the same cluster under its previous head. It is not an
	// option: nodes of other jobs that return keep their addresses.
	Kept Blocks
	// Idle is the time after which a node that a pod has brought leaves, if it has no pods; 0
	// means DefaultIdle.
	Idle time.Duration
	// NodeWait limits how long the nodes of a step wait for each other; 0 means
	// the default.
	NodeWait time.Duration
	// SlurmJobs makes Slurm jobs of objects of the cluster.
	SlurmJobs bool
	// ResultsImage is the image of the pods that collect results of such jobs. If it is
	// empty, objects with results are rejected.
	ResultsImage string
	// S3Endpoints holds the URLs of the S3 stores that objects of such jobs may name.
	S3Endpoints []string
	// HighlyAvailable starts control planes on ControlNodes nodes, so that the
	// cluster survives the loss of any one of them.
	HighlyAvailable bool
	// Grace is the time that the workload gets to end before the job does; 0
	// leaves that to Slurm.
	Grace time.Duration
	// FailFast ends the run when a node is lost.
	FailFast bool
	// State is a folder where the cluster's objects are saved. The next cluster
	// with the same folder restores them. Empty keeps nothing.
	State string
	// StateSecrets selects how Secrets are saved: encryptSecrets, which is the
	// default, or OmitSecrets.
	StateSecrets string
	// Stay keeps the cluster running until berth down ends it; the end of a
	// workload does not.
	Stay bool
	// KSI is set if the command is a script written for KSI.
	KSI *KSI
}

// KSI holds the options of a script written for KSI.
type KSI struct {
	// Shared is a folder that all nodes see; pods see its subfolder app. If it
	// is empty, pods see the working directory.
	Shared string
}

// Values of Spec.StateSecrets.
const (
	encryptSecrets = "encrypt"
	OmitSecrets    = "omit"
)

// Network holds the user's options for the network between the nodes.
type Network struct {
	// Ports is the range of ports on the hosts, such as 21000-28999; empty
	// means the default.
	Ports string
	// Interface carries the packets of pods between nodes. If it is empty, berth
	// uses the interface of the route to the other nodes' names.
	Interface string
	// IPFamily selects the addresses of pods, Services and nodes: IPv4Only,
	// DualStack or autoFamily, which is the default.
	IPFamily string
	// Refuse lists address ranges outside the cluster that pods may not reach.
	Refuse []string
	// Carrier is the protocol that carries packets of pods between nodes: "udp",
	// "tcp", or empty for whichever gets through.
	Carrier string
	// FastPath selects whether pods use sockets of the host's network to reach other
	// nodes and the outside. With FastPathAuto, which is the default, they do where
	// possible. With FastPathOff they never do.
	FastPath string
	// Folder is a folder that all nodes see. They use it to authenticate
	// themselves to each other where nothing better exists; empty for none.
	Folder string
}

// FastPathAnnotation on a pod or its namespace selects the network between the
// nodes instead of the fast path if its value is FastPathOff. FastPathAuto on a
// pod overrides its namespace's annotation. Other values are invalid.
const FastPathAnnotation = "berth.dev/fast-path"

// PullProgress is the reason of events that report the progress of an image
// pull.
const PullProgress = "PullProgress"

// Values of Network.FastPath.
const (
	FastPathAuto = "auto"
	FastPathOff  = "off"
)

// Validate returns all errors in a Spec, joined, or nil if there are none.
func (s Spec) Validate() error {
	var problems []error
	if len(s.Manifests) == 0 && len(s.Command) == 0 && !s.Stay && s.Join == "" {
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
	return errors.Join(slices.Concat(problems, s.checkInputs(), s.checkLayers(), s.checkNetwork())...)
}

// checkInputs checks what the workload gets: images, mounts, devices and ports.
func (s Spec) checkInputs() (problems []error) {
	for _, image := range s.Images {
		name, path, named := SplitImage(image)
		if path == "" || named && name == "" {
			problems = append(problems, fmt.Errorf("image %q: give --image ARCHIVE or --image NAME=ARCHIVE", image))
		} else if _, err := reference.ParseDockerRef(name); named && err != nil {
			problems = append(problems, fmt.Errorf("image %q: %q is not the name of an image: %w", image, name, err))
		}
	}
	for _, registry := range s.Registries {
		if _, _, err := splitRegistry(registry); err != nil {
			problems = append(problems, err)
		}
	}
	targets := map[string]bool{}
	for _, value := range s.Mounts {
		mount, err := ParseMount(value)
		if err == nil && targets[mount.Target] {
			err = fmt.Errorf("mount %q: %s is the target of another mount", value, mount.Target)
		}
		targets[mount.Target] = true
		if err != nil {
			problems = append(problems, err)
		}
	}
	for _, device := range s.Devices {
		if _, err := ParseDevice(device); err != nil {
			problems = append(problems, err)
		}
	}
	for _, port := range s.Publish {
		if _, err := ParsePublish(port); err != nil {
			problems = append(problems, err)
		}
	}
	return problems
}

func (s Spec) checkLayers() (problems []error) {
	switch s.Snapshotter {
	case "", autoSnapshotter, Overlay, EROFS:
	default:
		problems = append(problems, fmt.Errorf("snapshotter %q: give %s, %s or %s", s.Snapshotter, autoSnapshotter, Overlay, EROFS))
	}
	if s.NamesImageCache() && s.Snapshotter == Overlay {
		problems = append(problems, fmt.Errorf("image cache %s: it needs --snapshotter %s, which keeps each layer as one file", s.ImageCache, EROFS))
	}
	if s.LazyPull && s.Snapshotter == Overlay {
		problems = append(problems, fmt.Errorf("lazy pull: it needs --snapshotter %s, which keeps each layer as one file", EROFS))
	}
	if _, err := s.ImageCacheBytes(); err != nil {
		problems = append(problems, err)
	}
	if s.ImageBudget < 0 || s.ImageBudget > maxImageBudget {
		problems = append(problems, fmt.Errorf("image budget %d: give 1 to %d", s.ImageBudget, maxImageBudget))
	}
	return problems
}

// checkNetwork checks the options of the network, the number of nodes, the timeouts
// and the saved state.
func (s Spec) checkNetwork() (problems []error) {
	if s.AddressBlock != "" {
		if _, err := parseBlock(s.AddressBlock); err != nil {
			problems = append(problems, err)
		}
	}
	switch s.Network.IPFamily {
	case "", autoFamily, IPv4Only, DualStack:
	default:
		problems = append(problems, fmt.Errorf("IP family %q: give %s, %s or %s", s.Network.IPFamily, autoFamily, IPv4Only, DualStack))
	}
	if s.NodesPerHost < 1 || s.NodesPerHost > maxNodes {
		problems = append(problems, fmt.Errorf("%d nodes per host (--nodes-per-host): give 1 to %d", s.NodesPerHost, maxNodes))
	}
	if s.PodsPerNode != 0 && (s.PodsPerNode < leastPodsPerNode || s.PodsPerNode > mostPodsPerNode) {
		problems = append(problems, fmt.Errorf("%d pods per node (--pods-per-node): give %d to %d", s.PodsPerNode, leastPodsPerNode, mostPodsPerNode))
	}
	if s.NodeWait < 0 {
		problems = append(problems, fmt.Errorf("node wait %s: give a time such as 90s or 5m", s.NodeWait))
	}
	for _, refused := range s.Network.Refuse {
		if _, err := netip.ParsePrefix(refused); err != nil {
			problems = append(problems, fmt.Errorf("range %q that pods may not reach: give one such as 10.0.0.0/8 or 192.0.2.7/32", refused))
		}
	}
	if s.Grace < 0 {
		problems = append(problems, fmt.Errorf("grace %s: give a time such as 30s or 2m", s.Grace))
	}
	if c := s.Network.Carrier; c != "" && c != "udp" && c != "tcp" {
		problems = append(problems, fmt.Errorf("carrier %q: give udp or tcp", c))
	}
	if f := s.Network.FastPath; f != "" && f != FastPathAuto && f != FastPathOff {
		problems = append(problems, fmt.Errorf("fast path %q: give %s or %s", f, FastPathAuto, FastPathOff))
	}
	switch s.StateSecrets {
	case "", encryptSecrets, OmitSecrets:
	default:
		problems = append(problems, fmt.Errorf("state secrets %q: give %s or %s", s.StateSecrets, encryptSecrets, OmitSecrets))
	}
	problems = append(problems, s.checkSeats()...)
	if s.ResultsImage != "" && !s.SlurmJobs {
		problems = append(problems, errors.New("--results-image: it is for results of Slurm jobs: give --slurm-jobs, too"))
	}
	if len(s.S3Endpoints) > 0 && !s.SlurmJobs {
		problems = append(problems, errors.New("--s3-endpoint: it is for Slurm jobs of BridgeJobs: give --slurm-jobs, too"))
	}
	if s.State != "" && s.HighlyAvailable {
		problems = append(problems, errors.New("--state with --ha: only the first node saves, and the one that takes the run over would not go on with it; give one of them"))
	}
	return problems
}

// Absolute makes paths relative to dir absolute. It leaves the paths of manifests
// unchanged.
func (s *Spec) Absolute(dir string) {
	absolute := func(path string) string {
		if path == "" || filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(dir, path)
	}
	if NamesNoFolder(s.ImageCache) {
		s.ImageCache = noImageCache
	} else {
		s.ImageCache = absolute(s.ImageCache)
	}
	for i, image := range s.Images {
		name, path, named := SplitImage(image)
		s.Images[i] = absolute(path)
		if named {
			s.Images[i] = name + "=" + absolute(path)
		}
	}
	for i, mount := range s.Mounts {
		s.Mounts[i] = absolute(mount)
	}
	for _, path := range []*string{&s.StateDir, &s.State, &s.SharedVolumes, &s.DebugDir, &s.Network.Folder} {
		*path = absolute(*path)
	}
}

// noImageCache disables the image cache when given as its folder.
const noImageCache = "off"

// NamesNoFolder reports whether a user's value for the image cache disables it.
func NamesNoFolder(word string) bool { return word == noImageCache || word == "none" }

// NamesImageCache reports whether the user names a folder for the image cache.
func (s Spec) NamesImageCache() bool { return s.ImageCache != "" && !NamesNoFolder(s.ImageCache) }

// minCacheBytes is the smallest permitted limit of the image cache, in bytes. A
// smaller cache would hold no image.
const minCacheBytes = 1e6

// ImageCacheBytes returns the size limit of the image cache in bytes. It returns an
// error if ImageCacheLimit is not a size of at least minCacheBytes.
func (s Spec) ImageCacheBytes() (int64, error) {
	if s.ImageCacheLimit == "" {
		return ImageCacheBytes, nil
	}
	bytes, err := parseBytes(s.ImageCacheLimit)
	if err != nil || bytes < minCacheBytes {
		return 0, fmt.Errorf("image cache limit %q: give a size of at least 1M, such as 500M or 20G", s.ImageCacheLimit)
	}
	return bytes, nil
}

// maxImageBudget is the largest multiple of the limits on images that the runtime
// accepts.
const maxImageBudget = 1000

// parseBytes parses a size in bytes, such as 500M or 20GB. The suffixes k, M, G and T
// are powers of 1000.
func parseBytes(text string) (int64, error) {
	factor := 1e0
	text = strings.TrimSuffix(text, "B")
	if at := strings.IndexByte("kMGT", (" " + text)[len(text)]); at >= 0 {
		factor, text = math.Pow10(3*(at+1)), text[:len(text)-1]
	}
	number, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, err
	}
	if number < 0 || number*factor > math.MaxInt64/2 || math.IsNaN(number) {
		return 0, fmt.Errorf("%s is out of range", text)
	}
	return int64(number * factor), nil
}

// SplitImage splits an --image value into the name given to the image, if any,
// and the archive's path. A path may contain '=', so text before the first '='
// that begins with '/' or '.' is not a name.
func SplitImage(value string) (name, path string, named bool) {
	before, after, found := strings.Cut(value, "=")
	if !found || strings.HasPrefix(before, "/") || strings.HasPrefix(before, ".") {
		return "", value, false
	}
	return before, after, true
}

// splitRegistry splits a --registry value into the registry's name, as in image
// references, and the URL of its mirror without a final slash.
func splitRegistry(value string) (name, server string, err error) {
	name, server, _ = strings.Cut(value, "=")
	parsed, err := url.Parse(server)
	if err != nil || name == "" || strings.ContainsAny(name, "/ ") || parsed.Host == "" || parsed.User != nil ||
		parsed.Scheme != "http" && parsed.Scheme != "https" {
		return "", "", fmt.Errorf("registry %q: give --registry NAME=URL, such as --registry registry.site:5000=http://registry.site:5000", value)
	}
	return name, strings.TrimSuffix(server, "/"), nil
}
