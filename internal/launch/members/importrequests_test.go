package members

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/launch/archive"
)

func TestAnswersToOtherImportRequestsAreIgnored(t *testing.T) {
	answer := make(chan report, 1)
	e := importRequests{number: 2, open: map[string]chan report{"n2": answer}}
	e.deliver("n2", report{Number: 1}) // an answer to an abandoned request
	e.deliver("n3", report{Number: 2}) // an answer of a node that was not asked
	e.deliver("n2", report{Number: 2, Problem: "no room", Code: exitcode.NoSpace})
	e.deliver("n2", report{Number: 2}) // again
	if err := (<-answer).err(); exitcode.Of(err) != exitcode.NoSpace || err.Error() != "no room" {
		t.Errorf("%v, with code %d", err, exitcode.Of(err))
	}
	if len(answer) > 0 {
		t.Error("a second answer counts")
	}
}

func TestNewHeadImportsImagesOnceNodesConnected(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	a := &Monitor{}
	a.expected.Add(1)
	cancel()
	if err := a.AwaitExpected(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("it does not wait for a node that is on its way: %v", err)
	}
	a.expect(ctx, &member{name: "n3"}) // until the end of ctx
	if err := a.AwaitExpected(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestUnconnectedNodeIsNotAsked(t *testing.T) {
	var log bytes.Buffer
	m := &Monitor{Members: &Members{log: slog.New(slog.NewTextHandler(&log, nil))}}
	err := m.ask(t.Context(), connection{name: "n3"}, ImportRequest{Archives: []archive.Archive{{Path: "/a/x.tar"}}}, nil)
	if err != nil || !strings.Contains(log.String(), "node n3 is lost, and will not have the images of x.tar") {
		t.Errorf("%v, said %s", err, &log)
	}
}
