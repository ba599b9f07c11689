package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/testutil"
)

func sample() probe.Report {
	report := probe.Report{Version: probe.ReportVersion, Host: "n1", Kernel: "5.14.0-427.el9.x86_64", User: "alice", UID: 1001, Results: []probe.Result{
		{Name: "user-namespace", Title: "user namespaces", Level: probe.Required, OK: probe.Yes, Found: "created, ids mapped"},
		{Name: "own-proc", Title: "own /proc", Level: probe.Required, OK: probe.No, Found: "operation not permitted",
			Cost:   "parts of /proc are covered (/proc/kcore, /proc/acpi), and the kernel then forbids a /proc that would show them",
			Remedy: probe.Remedy{User: "run berth outside of the container", Admin: "start the container with an unmasked /proc: podman --security-opt unmask=ALL, docker --security-opt systempaths=unconfined"}},
		{Name: "subordinate-ids", Title: "subordinate ids", Level: probe.Recommended, OK: probe.Degraded, Found: "only 1001 uids and 1001 gids for alice, and images may use 65536",
			Cost: "files of images that belong to higher ids have another owner in pods", Remedy: probe.Remedy{Admin: "echo alice:101000:65536 | tee -a /etc/subuid >> /etc/subgid"}},
		{Name: "munge", Title: "munge", Level: probe.Optional, OK: probe.Unknown, Found: "no answer"},
	}}
	report.Conclude()
	return report
}

func TestDoctorPage(t *testing.T) {
	for name, p := range map[string]page{"plain": {width: 100}, "narrow-colour": {width: 60, colour: true}} {
		got := p.render(diagnosis{Report: sample()})
		testutil.Golden(t, "doctor."+name, got)
	}
}

func TestDoctorPlainIsPlain(t *testing.T) {
	var out bytes.Buffer
	if err := writeReport(&out, diagnosis{Report: sample()}, "text"); err != nil {
		t.Fatal(err)
	}
	for _, r := range out.String() {
		if r != '\n' && (r < ' ' || r > '~') {
			t.Fatalf("%q is not plain ASCII", r)
		}
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if last := lines[len(lines)-1]; last != "berth runs here: no, it lacks: own /proc" {
		t.Errorf("last line is %q", last)
	}
}

func TestDoctorJSON(t *testing.T) {
	var out bytes.Buffer
	if err := writeReport(&out, diagnosis{Report: sample()}, "json"); err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(out.Bytes(), &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"version", "host", "kernel", "user", "uid", "results", "runs", "verdict"} {
		if _, ok := fields[name]; !ok {
			t.Errorf("no field %s", name)
		}
	}
	result := fields["results"].([]any)[1].(map[string]any)
	for _, name := range []string{"name", "title", "level", "ok", "found", "cost", "remedy"} {
		if _, ok := result[name]; !ok {
			t.Errorf("no field %s in a result", name)
		}
	}
}

func TestDoctorRefusesUnknownOutput(t *testing.T) {
	doctor := newDoctorCommand()
	doctor.SetArgs([]string{"--output", "yaml"})
	if err := doctor.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "yaml") {
		t.Errorf("got %v", err)
	}
}
