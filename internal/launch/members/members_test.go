package members

import (
	"errors"
	"log/slog"
	"testing"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/launch/archive"
	"berth.dev/berth/internal/launch/identity"
)

func TestSingleNodeRunHasOneMember(t *testing.T) {
	m, err := New(t.Context(), slurm.Job{NodeName: "n1"}, Options{
		Spec: cluster.Spec{NodesPerHost: 1}, Getenv: func(string) string { return "" }, Log: slog.New(slog.DiscardHandler),
	}, &LocalConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if m.Several() || m.Size() != 1 || m.Name() != "n1" || m.First() != "n1" || !m.Leads() || !m.Controls(cluster.Spec{}) {
		t.Errorf("the only node is not the head: %+v", m)
	}
	if m.Places() != nil || m.Sockets().Streams != nil || m.CanFailOver() || m.Own() != nil || m.HasHead() {
		t.Error("the only node has a network to others, or a successor")
	}
	offers, err := m.Gather(t.Context(), 4)
	if err != nil || len(offers) != 1 || m.listener != nil {
		t.Errorf("it waits for %d nodes: %v", len(offers)-1, err)
	}
	archives := []archive.Archive{{Path: "/images/a.tar"}}
	if err := errors.Join(m.UseInterface("no such interface"), m.SendPlans(t.Context(), make([]cluster.Plan, 1), identity.Set{}, archives)); err != nil || m.archives != nil {
		t.Errorf("it prepares a network, or serves archives to nobody: %v", err)
	}
	monitor, imported := m.Monitor(t.Context(), MonitorConfig{}), false
	if err := monitor.Await(t.Context()); err != nil || !monitor.complete.Load() {
		t.Errorf("it waits for other nodes: %v", err)
	}
	if err := monitor.BringImages(t.Context(), archives, func() error { imported = true; return nil }); err != nil || !imported {
		t.Errorf("the archives are not imported here: %v", err)
	}
	// Nobody waits for this node, so the error stays with it.
	why := errors.New("no room")
	if code, err := m.Decline(t.Context(), 3, why); code != 3 || !errors.Is(err, why) {
		t.Errorf("%d, %v", code, err)
	}
	m.ReportLosses()
	m.Leave("the run has ended")
	m.Leave("the run has ended")
}
