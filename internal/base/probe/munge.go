package probe

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
)

// checkMunge makes a credential and has it checked, where munge's programs
// are. It forks, and a munged that hangs is given as long as all trials.
func checkMunge(h *Host, ctx context.Context) Result {
	r := Result{Name: "munge", Title: "munge", Level: Optional, OK: Yes,
		Cost:   "the nodes of a job prove themselves to each other by other means",
		Remedy: Remedy{Admin: "apt-get install munge; the same /etc/munge/munge.key on all nodes"}}
	socket := ""
	for _, path := range []string{"/run/munge/munge.socket.2", "/var/run/munge/munge.socket.2"} {
		if socket == "" && h.exists(path) {
			socket = path
		}
	}
	if socket == "" {
		r.OK, r.Found = No, "no socket /run/munge/munge.socket.2"
		return r
	}
	ctx, cancel := context.WithTimeout(ctx, trialLimit)
	defer cancel()
	credential, err := exec.CommandContext(ctx, "munge", "--no-input").Output()
	if err != nil {
		if _, lookErr := exec.LookPath("munge"); lookErr != nil {
			r.Found, r.Cost, r.Remedy = socket+" is there; the programs to try it are not", "", Remedy{}
			return r
		}
		r.OK, r.Found, r.Remedy.Admin = Degraded, "munge makes no credential: "+err.Error(), "systemctl status munge"
		return r
	}
	check := exec.CommandContext(ctx, "unmunge")
	check.Stdin = bytes.NewReader(credential)
	if output, err := check.CombinedOutput(); err != nil {
		first, _, _ := strings.Cut(string(output), "\n")
		r.OK, r.Found, r.Remedy.Admin = Degraded, "unmunge refuses a fresh credential: "+first, "compare clocks and /etc/munge/munge.key; systemctl status munge"
		return r
	}
	r.Found, r.Cost, r.Remedy = socket+", a credential was made and checked", "", Remedy{}
	return r
}
