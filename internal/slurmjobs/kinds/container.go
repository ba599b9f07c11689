package kinds

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
)

// Container describes the container that a job runs on each of its nodes.
type Container struct {
	// Image is the image as the object names it. Either Reference names it in a registry,
	// or File is the path of an archive or a folder. A relative path begins in the working
	// directory.
	Image, Reference, File string
	// Pull is the reference of an image that berth cannot pull, which File stands for.
	Pull string
	// HostName is the host name in the container. Empty means that berth chooses one.
	HostName string
	// NoPrivileges drops the capabilities of the container.
	NoPrivileges bool
	Binds        []Bind
	// CPUs and MemoryMB are for each node. Zero asks for nothing.
	CPUs, MemoryMB int64
}

// Bind is a file or a folder of the host that a container sees as Target.
type Bind struct {
	Source, Target string
	ReadOnly       bool
}

// wlmJobSpec is the spec of a WlmJob.
type wlmJobSpec struct {
	Image   string `json:"image"`
	Options struct {
		AllowUnsigned bool     `json:"allowUnsigned"`
		CleanEnv      bool     `json:"cleanEnv"`
		FakeRoot      bool     `json:"fakeRoot"`
		IPC           bool     `json:"ipc"`
		PID           bool     `json:"pid"`
		NoPrivs       bool     `json:"noPrivs"`
		Writable      bool     `json:"writable"`
		App           string   `json:"app"`
		HostName      string   `json:"hostName"`
		Binds         []string `json:"binds"`
	} `json:"options"`
	Resources struct {
		Nodes      int64 `json:"nodes"`
		CPUPerNode int64 `json:"cpuPerNode"`
		MemPerNode int64 `json:"memPerNode"` // in MB
		WallTime   int64 `json:"wallTime"`   // in seconds
	} `json:"resources"`
	NodeSelector map[string]any `json:"nodeSelector"`
	Results      map[string]any `json:"results"`
}

// Limits of spec.resources, besides maxNodes. The definition of the kind has them, too.
const (
	maxCPUs     = 1 << 16
	maxMemoryMB = 1 << 40
	maxWallTime = 1 << 31
)

// readWlmJob decodes the spec of a WlmJob, and adds what is wrong with it to p. The options
// cleanEnv, fakeRoot, ipc and pid are on in every container, so they are not looked at.
func readWlmJob(text []byte, p *problems) Request {
	var spec wlmJobSpec
	p.decode(text, &spec)
	container := &Container{Image: spec.Image, NoPrivileges: spec.Options.NoPrivs}
	container.readImage(p)
	container.readBinds(spec.Options.Binds, p)
	request := Request{Container: container}
	size := spec.Resources
	request.Nodes = p.amount("spec.resources.nodes", size.Nodes, maxNodes)
	container.CPUs = p.amount("spec.resources.cpuPerNode", size.CPUPerNode, maxCPUs)
	container.MemoryMB = p.amount("spec.resources.memPerNode", size.MemPerNode, maxMemoryMB)
	request.TimeLimit = time.Duration(p.amount("spec.resources.wallTime", size.WallTime, maxWallTime)) * time.Second
	request.selectNodes(spec.NodeSelector, "spec.resources", p)
	request.readResults(spec.Results, p)

	if spec.Options.App != "" {
		p.add("spec.options.app %q is not supported: make an image whose runscript starts the app", spec.Options.App)
	}
	if name := spec.Options.HostName; name != "" {
		container.HostName = name
		switch {
		case len(name) > 63 || !hostName.MatchString(name):
			p.add("spec.options.hostName %q: give at most 63 lowercase letters, digits and hyphens", name)
		case request.Nodes > 1:
			container.HostName = ""
			request.warn("spec.options.hostName has no effect with several nodes: the containers have different names")
		}
	}
	if !spec.Options.AllowUnsigned {
		request.warn("berth checks no signatures of images; spec.options.allowUnsigned: true confirms that")
	}
	if spec.Options.Writable {
		request.warn("spec.options.writable: changes of the image's files are lost at the end of the job; write to the working directory, or to one of spec.options.binds")
	}
	return request
}

func (r *Request) warn(text string) { r.Warnings = append(r.Warnings, text) }

// hostName matches a label of a DNS name, as pods need it.
var hostName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// Schemes of images. Singularity gives a file that it pulls from its library the name
// NAME_TAG.sif.
const (
	schemeFile    = "file://"
	schemeDocker  = "docker://"
	schemeLibrary = "library://"
)

// libraryName matches the last component of a reference to a library of SIF files.
var libraryName = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*)(?:[:@]([A-Za-z0-9][A-Za-z0-9._-]*))?$`)

// amount checks a number from 0, which asks for nothing, to limit.
func (p *problems) amount(field string, value, limit int64) int64 {
	if value < 0 || value > limit {
		p.add("%s %d: give a whole number from 0 to %d", field, value, limit)
		return 0
	}
	return value
}

// readImage sets Reference, or File and Pull, from Image.
func (c *Container) readImage(p *problems) {
	const field = "spec.image"
	image := p.file(field, c.Image)
	scheme, rest, hasScheme := strings.Cut(image, "://")
	switch {
	case strings.TrimSpace(image) == "" || hasScheme && rest == "":
		p.add("%s %q names no image", field, image)
	case strings.HasPrefix(image, schemeFile):
		c.File = rest
	case strings.HasPrefix(image, schemeDocker):
		named, err := reference.ParseDockerRef(rest)
		if err != nil {
			p.add("%s %q: %w", field, image, err)
			return
		}
		c.Reference = named.String()
	case strings.HasPrefix(image, schemeLibrary):
		parts := libraryName.FindStringSubmatch(path.Base(rest))
		if parts == nil {
			p.add("%s %q: give library://ENTITY/COLLECTION/NAME:TAG", field, image)
			return
		}
		tag := parts[2]
		if tag == "" {
			tag = "latest"
		}
		c.File, c.Pull = parts[1]+"_"+tag+".sif", image
	case hasScheme:
		p.add("%s %q: berth has no images of %s://: give the path of a SIF file, or docker://NAME", field, image, scheme)
	default:
		c.File = image
	}
}

// readBinds reads bind paths of Singularity: SOURCE[:TARGET[:OPTIONS]], several of them with
// commas in between.
func (c *Container) readBinds(lists []string, p *problems) {
	seen := map[string]bool{}
	for _, list := range lists {
		for text := range strings.SplitSeq(list, ",") {
			bind, ok := readBind(text, p)
			if !ok {
				continue
			}
			if seen[bind.Target] {
				p.add("spec.options.binds %q: %s is the target of another bind", text, bind.Target)
			}
			seen[bind.Target] = true
			c.Binds = append(c.Binds, bind)
		}
	}
}

// readBind reads one bind path.
func readBind(text string, p *problems) (bind Bind, ok bool) {
	const field = "spec.options.binds"
	before := len(*p)
	p.file(field, text)
	parts := strings.Split(text, ":")
	bind = Bind{Source: parts[0], Target: parts[0]}
	if len(parts) > 1 {
		bind.Target = parts[1]
	}
	options := "rw"
	if len(parts) > 2 {
		options = parts[2]
	}
	switch {
	case len(parts) > 3 || options != "ro" && options != "rw":
		p.add("%s %q: give SOURCE[:TARGET[:ro]]", field, text)
	case !path.IsAbs(bind.Source) || !path.IsAbs(bind.Target) || slices.Contains(slices.Concat(strings.Split(bind.Source, "/"), strings.Split(bind.Target, "/")), ".."):
		p.add("%s %q: give absolute paths without '..'", field, text)
	case path.Clean(bind.Target) == "/":
		p.add("%s %q: a bind cannot replace all files of the container", field, text)
	}
	bind.Source, bind.Target, bind.ReadOnly = path.Clean(bind.Source), path.Clean(bind.Target), options == "ro"
	return bind, len(*p) == before
}
