package main

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// stateObjects is the number of saved objects that the test adds to a cluster.
const stateObjects = 2000

// savedLine matches the line that berth run --verbose prints for each save.
var savedLine = regexp.MustCompile(`saved (\d+) objects in (\S+), including (\S+) to read them`)

// saveAndRestore saves the objects of a cluster, and starts a second cluster from them. It
// returns three durations in seconds: to save the objects, to read them from etcd (a part of
// the first), and from the second start until a restored pod is ready.
func (b *bencher) saveAndRestore() (_ map[string]float64, err error) {
	dir, err := b.ownDirectory()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	text := strings.Builder{}
	text.WriteString(sleeper)
	for i := range stateObjects {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c%d}\ndata: {text: %s}\n", i, strings.Repeat("x", 1000))
	}
	path, remove, err := manifest(text.String())
	if err != nil {
		return nil, err
	}
	defer remove()
	const ready = "kubectl wait --for=condition=Ready --timeout=60s pod/sleeper >&2"
	run := func(script string) (stderr string, took time.Duration, err error) {
		command, err := b.command("run", "--verbose", "--state", filepath.Join(dir, "state"), "--image", b.image, "--", "sh", "-ec", script, path)
		if err != nil {
			return "", 0, err
		}
		command.Env = append(command.Env, "BERTH_STATE_KEY="+filepath.Join(dir, "key"))
		var messages strings.Builder
		command.Stderr = &messages
		out, err := command.StdoutPipe()
		if err != nil {
			return "", 0, err
		}
		start := time.Now()
		if err := command.Start(); err != nil {
			return "", 0, err
		}
		var first [1]byte
		if _, err := out.Read(first[:]); err == nil {
			took = time.Since(start)
		}
		if err := command.Wait(); err != nil {
			return "", 0, fmt.Errorf("%w: %s", err, messages.String())
		}
		return messages.String(), took, nil
	}
	stderr, _, err := run(`kubectl create -f "$0" >/dev/null; ` + ready + `; echo ready`)
	if err != nil {
		return nil, err
	}
	all := savedLine.FindAllStringSubmatch(stderr, -1)
	if len(all) == 0 {
		return nil, fmt.Errorf("nothing was saved: %s", stderr)
	}
	last := all[len(all)-1]
	if count, _ := strconv.Atoi(last[1]); count < stateObjects {
		return nil, fmt.Errorf("%d objects were saved instead of %d or more", count, stateObjects)
	}
	whole, err1 := time.ParseDuration(last[2])
	reading, err2 := time.ParseDuration(last[3])
	_, again, err := run(ready + `; echo ready; kubectl get configmap c1999 >&2`)
	return map[string]float64{
		"state: 2,000 objects saved, s":                whole.Seconds(),
		"state: of that, to read them, s":              reading.Seconds(),
		"state: start with them to a pod that runs, s": again.Seconds(),
	}, errors.Join(err, err1, err2)
}

// ownDirectory creates a directory owned by the user who runs the measured programs. The
// caller removes it.
func (b *bencher) ownDirectory() (string, error) {
	dir, err := os.MkdirTemp("/var/tmp", "berth-bench-")
	if err != nil || b.user == "" {
		return dir, err
	}
	account, err := user.Lookup(b.user)
	if err != nil {
		return "", err
	}
	uid, err1 := strconv.Atoi(account.Uid)
	gid, err2 := strconv.Atoi(account.Gid)
	return dir, errors.Join(err1, err2, os.Chown(dir, uid, gid))
}
