package kinds

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Request holds what an object asks Slurm for. Zero values ask for nothing.
type Request struct {
	// Script is the batch script. If it is empty, ScriptFile is the script's path on the
	// controller's host, or ScriptObject is the script's place in S3.
	Script       []byte
	ScriptFile   string
	ScriptObject *S3Object
	// Container replaces the script: the job runs an image.
	Container *Container

	JobName, Partition string
	Nodes, Tasks       int64
	Features           []string // that each node must have
	TimeLimit          time.Duration
	// Dir is the working directory; Output and Error are file names as in sbatch.
	Dir, Output, Error string
	// Path and LibraryPath become PATH and LD_LIBRARY_PATH of the job.
	Path, LibraryPath string

	// Inputs describes the files to copy before the job is submitted, and Results the files to
	// collect after its end, if there are any.
	Inputs  *Inputs
	Results *Results
	// Upload describes the files to write into S3 after the job's end, if there are any.
	Upload *Upload
	// S3 is the store for ScriptObject and Upload.
	S3 S3Storage

	// ResourceURL names a Slurm; empty means the controller's own.
	ResourceURL string
	// Kill asks to cancel the job and to keep the object.
	Kill bool
	// Unused lists the fields that are set but have no effect, each with the reason.
	Unused []string
	// Warnings lists the fields that have another effect than with the kind's operator, each
	// with the difference.
	Warnings []string
}

// Inputs describes the files of a volume that are copied for a job.
type Inputs struct {
	// To is a folder on the controller's host. A relative path begins in the job's working
	// directory.
	To string
	// Volume is a volume as in the spec of a pod.
	Volume map[string]any
}

// Results describes the files of a job that are collected into a volume.
type Results struct {
	// From is a path on the controller's host. A relative path begins in the job's working
	// directory.
	From string
	// Volume is a volume as in the spec of a pod.
	Volume map[string]any
}

// S3Object names an object in S3.
type S3Object struct{ Bucket, Name string }

// S3Storage names an S3 store.
type S3Storage struct {
	// Secret is the name of a Secret in the namespace of the object, with the credentials.
	Secret string
	// Endpoint is a host name with an optional port. Secure selects HTTPS.
	Endpoint string
	Secure   bool
}

// Upload describes the files of a job that are written into S3, besides its output.
type Upload struct {
	Bucket string
	// Files holds paths on the controller's host. A relative path begins in the job's working
	// directory.
	Files []string
}

// Read decodes the spec of an object. The error lists everything in the spec that is wrong or
// not supported, one problem on each line.
func Read(object *unstructured.Unstructured) (Request, error) {
	kind, err := Of(object)
	if err != nil {
		return Request{}, err
	}
	text, err := json.Marshal(object.Object["spec"])
	if err != nil {
		return Request{}, fmt.Errorf("spec: %w", err)
	}
	var problems problems
	var request Request
	switch kind {
	case BridgeJob:
		request = readBridgeJob(text, &problems)
	case SlurmJob:
		request = readSlurmJob(text, &problems)
	case WlmJob:
		request = readWlmJob(text, &problems)
	}
	return request, errors.Join(problems...)
}

// Killed reports whether the spec of an object asks to cancel its job.
func Killed(object *unstructured.Unstructured) bool {
	kill, _, _ := unstructured.NestedBool(object.Object, "spec", "kill")
	return kill
}

// HasResults reports whether files of an object's job are to be collected, or uploaded.
func HasResults(object *unstructured.Unstructured) bool {
	results, found, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", "results")
	bucket, _, _ := unstructured.NestedString(object.Object, "spec", "s3upload", "bucket")
	return found && results != nil || bucket != ""
}

// HasInputs reports whether files are to be copied before an object's job is submitted.
func HasInputs(object *unstructured.Unstructured) bool {
	inputs, found, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", "prepare")
	return found && inputs != nil
}

// problems collects the errors of a spec. Its methods check a value and return it; they add an
// error that names the field if the value is invalid.
type problems []error

// Limits of messages, in bytes: a message is stored in the object, and in events.
const (
	maxQuoted  = 200
	MaxMessage = 2 << 10
)

func (p *problems) add(format string, args ...any) {
	for i, arg := range args {
		if text, ok := arg.(string); ok {
			args[i] = Shorten(text, maxQuoted)
		}
	}
	*p = append(*p, fmt.Errorf(format, args...))
}

// Shorten cuts a text to a number of bytes.
func Shorten(text string, limit int) string {
	const rest = "..."
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit-len(rest)], "") + rest
}

// decode decodes a spec in JSON.
func (p *problems) decode(text []byte, into any) {
	if err := json.Unmarshal(text, into); err != nil {
		p.add("spec: %w", err)
	}
}

// script checks a batch script as sbatch checks it.
func (p *problems) script(field, script string) []byte {
	switch {
	case strings.TrimSpace(script) == "":
		p.add("%s is empty: give a batch script", field)
	case !strings.HasPrefix(script, "#!"):
		p.add("%s: a batch script begins with #!, such as #!/bin/sh", field)
	case strings.ContainsRune(script, 0):
		p.add("%s: a batch script contains no zero byte", field)
	case strings.Contains(script, "\r\n"):
		p.add("%s has line ends of Windows, which sbatch refuses: convert it with dos2unix", field)
	}
	return []byte(script)
}

// word checks a value that is passed to sbatch as one word.
func (p *problems) word(field, value string) string {
	if strings.ContainsFunc(value, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r == ',' }) || strings.HasPrefix(value, "-") {
		p.add("%s %q: give one word without spaces and commas", field, value)
	}
	return value
}

// file checks a file name, which may contain spaces.
func (p *problems) file(field, value string) string {
	if strings.ContainsFunc(value, unicode.IsControl) {
		p.add("%s %q: a file name contains no control characters", field, value)
	}
	return value
}

// absolute checks a path that must be absolute or empty.
func (p *problems) absolute(field, value string) string {
	if value != "" && !path.IsAbs(value) {
		p.add("%s %q: give an absolute path", field, value)
	}
	return p.file(field, value)
}

// count parses a number from 1 to limit. It returns 0, which asks for nothing, for an empty or
// an invalid value.
func (p *problems) count(field, value string, limit int64) int64 {
	if value == "" {
		return 0
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 1 || n > limit {
		p.add("%s %q: give a whole number from 1 to %d", field, value, limit)
		return 0
	}
	return n
}

// scalar returns a string, a number or a boolean of JSON as text, and false for other values.
func scalar(value any) (string, bool) {
	switch v := value.(type) {
	case string:
		return v, true
	case bool:
		return strconv.FormatBool(v), true
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return strconv.FormatInt(int64(v), 10), true
		}
		return strconv.FormatFloat(v, 'g', -1, 64), true
	}
	return "", false
}
