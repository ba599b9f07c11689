package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// writeIDMaps writes the id maps of the user namespace of process pid, with the
// setuid programs newuidmap and newgidmap.
func writeIDMaps(pid int, ids IDMap) error {
	// Both at once, because each takes a fork, an exec and a lookup of the user.
	failures := make(chan error, 2)
	go func() { failures <- runMapper(ids.NewUIDMap, pid, ids.UIDs) }()
	go func() { failures <- runMapper(ids.NewGIDMap, pid, ids.GIDs) }()
	return errors.Join(<-failures, <-failures)
}

func runMapper(program string, pid int, ranges []IDRange) error {
	args := []string{strconv.Itoa(pid)}
	for _, r := range ranges {
		args = append(args, formatID(r.Inside), formatID(r.Outside), formatID(r.Count))
	}
	command := exec.Command(program, args...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("map subordinate ids with '%s %s': %w: %s; check /etc/subuid and /etc/subgid, or run with --one-uid",
			program, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

func formatID(id uint32) string { return strconv.FormatUint(uint64(id), 10) }

// lastLine returns the last non-empty line of content.
func lastLine(content []byte) string {
	content = bytes.TrimRight(content, "\n")
	return string(content[bytes.LastIndexByte(content, '\n')+1:])
}
