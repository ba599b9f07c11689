package queue

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Names of files in the folder of an object. The batch script makes the folder GuardName, and
// exits if it exists and another job made it. An element of an array adds a dot and its index.
const (
	ScriptName = "script"
	// NumberName is the file that holds the number of the object's job.
	NumberName = "number"
	GuardName  = "job"
	// OwnerName is the file in the folder of the guard that holds the number of the job,
	// or of the array.
	OwnerName = "id"
	// StartsName is the file that has a line for each start: the time in seconds, and the
	// node. EndName holds the exit status as a shell gives it, and the time of the end.
	StartsName = "starts"
	EndName    = "end"
)

// Folder returns the folder of an object.
func Folder(state, uid string) string { return filepath.Join(state, uid) }

// record holds what batch scripts wrote for one guard.
type record struct {
	owner      string
	start, end time.Time
	starts     int
	code       int
}

// readRecord reads the folder of a guard.
func readRecord(dir string) (record, error) {
	owner, err := readSmall(filepath.Join(dir, OwnerName))
	if err != nil {
		return record{}, err
	}
	r := record{owner: strings.TrimSpace(owner)}
	starts, _ := readSmall(filepath.Join(dir, StartsName))
	for line := range strings.Lines(starts) {
		r.starts++
		r.start = seconds(strings.Fields(line), 0)
	}
	end, _ := readSmall(filepath.Join(dir, EndName))
	if fields := strings.Fields(end); len(fields) == 2 {
		r.end = seconds(fields, 1)
		if r.code, err = strconv.Atoi(fields[0]); err != nil {
			return record{}, fmt.Errorf("read %s: %w", filepath.Join(dir, EndName), err)
		}
	}
	return r, nil
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
