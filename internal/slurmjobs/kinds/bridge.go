package kinds

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"
)

// bridgeSpec is the spec of a BridgeJob, with Bridge Operator's names of fields.
type bridgeSpec struct {
	Image           string `json:"image"`
	ImagePullPolicy string `json:"imagepullpolicy"`
	ResourceURL     string `json:"resourceURL"`
	ResourceSecret  string `json:"resourcesecret"`
	UpdateInterval  int64  `json:"updateinterval"`
	Kill            bool   `json:"kill"`
	JobData         struct {
		JobScript           string `json:"jobscript"`
		ScriptLocation      string `json:"scriptlocation"`
		ScriptMetadata      string `json:"scriptmetadata"`
		JobParameters       string `json:"jobparameters"`
		ScriptExtraLocation string `json:"scriptextralocation"`
		AdditionalData      string `json:"additionaldata"`
	} `json:"jobdata"`
	JobProperties string `json:"jobproperties"`
	S3Storage     struct {
		S3Secret string `json:"s3secret"`
		Endpoint string `json:"endpoint"`
		Secure   *bool  `json:"secure"`
	} `json:"s3storage"`
	S3Upload struct {
		Bucket string `json:"bucket"`
		Files  string `json:"files"`
	} `json:"s3upload"`
}

// Upper limits of the numbers in properties.
const (
	maxNodes = 1 << 16
	maxTasks = 1 << 24
	maxHours = 10 * 366 * 24
)

// maxUploads is the largest number of files in spec.s3upload.files.
const maxUploads = 1000

// readBridgeJob decodes the spec of a BridgeJob, and adds what is wrong with it to p.
func readBridgeJob(text []byte, p *problems) Request {
	var spec bridgeSpec
	p.decode(text, &spec)
	request := Request{ResourceURL: spec.ResourceURL, Kill: spec.Kill}
	data := spec.JobData
	switch data.ScriptLocation {
	case "inline":
		request.Script = p.script("spec.jobdata.jobscript", data.JobScript)
	case "remote", "": // Bridge Operator's default
		if strings.HasPrefix(data.JobScript, "#!") {
			p.add("spec.jobdata.jobscript is a script, and with scriptlocation: remote a path: set spec.jobdata.scriptlocation: inline")
			break
		}
		if strings.TrimSpace(data.JobScript) == "" {
			p.add("spec.jobdata.jobscript is empty: give the script's path on the login host, or the script itself with scriptlocation: inline")
		}
		request.ScriptFile = p.file("spec.jobdata.jobscript", data.JobScript)
	case "s3":
		bucket, key, ok := strings.Cut(data.JobScript, ":")
		if !ok || bucket == "" || key == "" {
			p.add("spec.jobdata.jobscript %q: give BUCKET:OBJECT with scriptlocation: s3", data.JobScript)
		}
		request.ScriptObject = &S3Object{Bucket: bucket, Name: key}
	default:
		p.add("spec.jobdata.scriptlocation %q: give inline, remote or s3", data.ScriptLocation)
	}
	if data.ScriptExtraLocation == "s3" && data.JobParameters != "" {
		p.add("spec.jobdata.scriptextralocation: s3 is not supported yet: put the parameters into the object (inline)")
	} else {
		request.properties("spec.jobdata.jobparameters", data.JobParameters, p)
	}
	request.properties("spec.jobproperties", spec.JobProperties, p)
	if data.ScriptMetadata != "" {
		p.add("spec.jobdata.scriptmetadata has no meaning for Slurm: remove it")
	}
	if data.AdditionalData != "" {
		p.add("spec.jobdata.additionaldata is not supported yet: have the script fetch its files")
	}
	request.readS3(spec, p)
	if spec.ResourceSecret != "" {
		request.unused("resourcesecret: the job belongs to the user who runs the controller, without a password")
	}
	if spec.Image != "" || spec.ImagePullPolicy != "" || spec.UpdateInterval != 0 {
		request.unused("image, imagepullpolicy, updateinterval: no pod watches the job")
	}
	return request
}

// readS3 decodes spec.s3storage and spec.s3upload.
func (r *Request) readS3(spec bridgeSpec, p *problems) {
	storage := spec.S3Storage
	if bucket := spec.S3Upload.Bucket; bucket != "" {
		r.Upload = &Upload{Bucket: bucket}
		for name := range strings.SplitSeq(spec.S3Upload.Files, ",") {
			if name = strings.TrimSpace(name); name != "" {
				r.Upload.Files = append(r.Upload.Files, p.file("spec.s3upload.files", name))
			}
		}
		if count := len(r.Upload.Files); count > maxUploads {
			p.add("spec.s3upload.files names %d files, and %d at most are uploaded: have the script put them into an archive", count, maxUploads)
		}
	}
	if r.ScriptObject == nil && r.Upload == nil {
		if storage.S3Secret != "" && len(*p) == 0 {
			r.unused("s3storage: nothing of this object is in S3")
		}
		return
	}
	if storage.S3Secret == "" || storage.Endpoint == "" {
		p.add("spec.s3storage: give s3secret, the name of a Secret with accesskey and secretkey, and endpoint, the host name of the S3 store")
	}
	r.S3 = S3Storage{Secret: storage.S3Secret, Endpoint: storage.Endpoint, Secure: storage.Secure == nil || *storage.Secure}
}

func (r *Request) unused(text string) { r.Unused = append(r.Unused, text) }

// properties decodes Bridge Operator's properties of a job, a JSON object in a string. They
// override the values that are already in the request.
func (r *Request) properties(field, text string, p *problems) {
	if strings.TrimSpace(text) == "" {
		return
	}
	var values map[string]any
	if err := json.Unmarshal([]byte(text), &values); err != nil {
		p.add("%s: %w; give a JSON object", field, err)
		return
	}
	var hours, minutes int64
	setters := map[string]func(field, value string){
		"NodesNumber":       func(f, v string) { r.Nodes = p.count(f, v, maxNodes) },
		"Tasks":             func(f, v string) { r.Tasks = p.count(f, v, maxTasks) },
		"Queue":             func(f, v string) { r.Partition = p.word(f, v) },
		"slurmJobName":      func(f, v string) { r.JobName = p.file(f, v) },
		"currentWorkingDir": func(f, v string) { r.Dir = p.absolute(f, v) },
		"envPath":           func(f, v string) { r.Path = p.file(f, v) },
		"envLibPath":        func(f, v string) { r.LibraryPath = p.file(f, v) },
		"OutputFileName":    func(f, v string) { r.Output = p.file(f, v) },
		"ErrorFileName":     func(f, v string) { r.Error = p.file(f, v) },
		"RunLimitHour":      func(f, v string) { hours = p.count(f, v, maxHours) },
		"RunLimitMinute":    func(f, v string) { minutes = p.count(f, v, maxHours*60) },
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value, ok := scalar(values[name])
		switch set := setters[name]; {
		case set == nil:
			p.add("%s: no property %q: there are %s", field, name, strings.Join(slices.Sorted(maps.Keys(setters)), ", "))
		case !ok:
			p.add("%s: %s: give a string or a number", field, name)
		default:
			set(field+": "+name, value)
		}
	}
	if limit := time.Duration(hours)*time.Hour + time.Duration(minutes)*time.Minute; limit > 0 {
		r.TimeLimit = limit
	}
}
