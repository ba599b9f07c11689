package queue

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Names of files in the folder of an object. The client writes these:
const (
	// ScriptName is the batch script, and UserScriptName the object's own script.
	ScriptName     = "script"
	UserScriptName = "slurm_script"
	// NumberName is the file that holds the number of the object's job.
	NumberName = "number"
)

// The batch script makes these. An element of an array adds a dot and its index.
const (
	// OwnerName is a symbolic link to the number of the job, or of the array, that may
	// run the object's script. A link is made and filled in one step. A job that asks
	// again, after a requeue or a lost answer of a file server, finds its own number.
	OwnerName = "owner"
	// StartsName is the file that has a line for each start: the time in seconds, and the
	// node. EndName holds the exit status as a shell gives it, and the time of the end.
	StartsName = "starts"
	EndName    = "end"
)

// Folder returns the folder of an object.
func Folder(state, uid string) string { return filepath.Join(state, uid) }

// record holds what a batch script wrote.
type record struct {
	// element is the index in an array, or "".
	element    string
	start, end time.Time
	starts     int
	code       int
}

// readRecords returns the records of a job, or of the elements of an array.
func readRecords(folder, id string) []record {
	var records []record
	links, _ := filepath.Glob(filepath.Join(folder, OwnerName+"*"))
	for _, link := range links {
		owner, err := os.Readlink(link)
		if err != nil || owner != id {
			continue
		}
		part := strings.TrimPrefix(filepath.Base(link), OwnerName)
		r := readRecord(filepath.Join(folder, StartsName+part), filepath.Join(folder, EndName+part))
		r.element = strings.TrimPrefix(part, ".")
		records = append(records, r)
	}
	return records
}

// recordedElements returns the elements of an ended array as their batch scripts recorded
// them. An element that recorded no end was killed, or its node failed.
func recordedElements(folder, id string) []listed {
	var elements []listed
	for _, r := range readRecords(folder, id) {
		element := listed{root: id, part: id + "_" + r.element, state: "COMPLETED", code: r.code, restarts: max(0, r.starts-1), start: r.start, end: r.end, isArray: true}
		if r.end.IsZero() || r.code != 0 {
			element.state = "FAILED"
		}
		if r.element != "" {
			elements = append(elements, element)
		}
	}
	return elements
}

// readRecord reads files that may be missing or incomplete.
func readRecord(startsPath, endPath string) record {
	var r record
	starts, _ := readSmall(startsPath)
	for line := range strings.Lines(starts) {
		r.starts++
		r.start = seconds(strings.Fields(line), 0)
	}
	end, _ := readSmall(endPath)
	if fields := strings.Fields(end); len(fields) == 2 {
		if code, err := strconv.Atoi(fields[0]); err == nil {
			r.code, r.end = code, seconds(fields, 1)
		}
	}
	return r
}

// seconds returns the time in a field, in seconds since 1970, or zero.
func seconds(fields []string, i int) time.Time {
	if i >= len(fields) {
		return time.Time{}
	}
	n, err := strconv.ParseInt(fields[i], 10, 64)
	if err != nil || n <= 0 {
		return time.Time{}
	}
	return time.Unix(n, 0)
}

// maxRecord bounds the size of a file of a record.
const maxRecord = 64 << 10

func readSmall(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() > maxRecord {
		return "", fmt.Errorf("read %s: it is not a small file", path)
	}
	text, err := os.ReadFile(path)
	return string(text), err
}
