package queue

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Names of the files that the client writes into the folder of an object.
const (
	// ScriptName, a hyphen and the version of the object name the batch script. UserScriptName names
	// the object's own script.
	ScriptName     = "script"
	UserScriptName = "slurm_script"
	// NumberName names the file that holds the number of the object's job and the version.
	NumberName = "number"
	// replacedName names the file that holds the numbers of jobs that Submit has replaced.
	replacedName = "replaced"
)

// Names of the files that the batch script writes there. An element of an array appends a dot
// and its index to each of them.
const (
	// OwnerName names a symbolic link whose target is the number of the job, or of the
	// array, that may run the object's script. A link gets its content when it is created,
	// unlike a file. A job finds its own number there after a requeue, and after a lost
	// answer of a file server.
	OwnerName = "owner"
	// StartsName names a file with one line for each start: the time and the node.
	// EndName names a file with the exit status, as in $? of a shell, and the time of the
	// end. Times are in seconds since 1970.
	StartsName = "starts"
	EndName    = "end"
)

// StateFolder returns the default folder for the records of a part of berth: berth/PART below
// XDG_STATE_HOME, which defaults to .local/state below the home.
func StateFolder(getenv func(string) string, home, part string) string {
	state := getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) {
		state = filepath.Join(home, ".local/state")
	}
	return filepath.Join(state, "berth", part)
}

// Folder returns the path of the folder of an object below the folder state.
func Folder(state, uid string) string { return filepath.Join(state, uid) }

// record holds what a batch script recorded.
type record struct {
	// element is the index in an array, or "".
	element string
	// start is the time of the last start, and starts the number of starts. end is zero
	// for a script that has not recorded its end.
	start, end time.Time
	starts     int
	exitCode   int
}

// readRecords returns the record of a job, or one record for each element of an array that
// has started.
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
		element := listed{root: id, part: id + "_" + r.element, state: "COMPLETED", exitCode: r.exitCode, restarts: max(0, r.starts-1), start: r.start, end: r.end, isArray: true}
		if r.end.IsZero() || r.exitCode != 0 {
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
			r.exitCode, r.end = code, seconds(fields, 1)
		}
	}
	return r
}

// seconds parses fields[i], a time in seconds since 1970. It returns the zero time if the
// field is missing or invalid.
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

// maxRecord is the largest size of a record, in bytes.
const maxRecord = 64 << 10

// readSmall reads a regular file of at most maxRecord bytes.
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
