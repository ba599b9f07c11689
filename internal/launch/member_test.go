package launch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/members"
)

// The head may send images to a node of another job that still starts.
func TestImagesWaitForTheRoles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancelCause(t.Context())
		added := make(chan struct{})
		imports := 0
		do := importer(ctx, added, func(members.ImportRequest) error { imports++; return nil })
		answers := make(chan error, 2)
		answer := func(err error) { answers <- err }
		do(members.ImportRequest{Number: 1}, answer)
		synctest.Wait()
		if imports > 0 || len(answers) > 0 {
			t.Fatal("images are imported before the roles are added")
		}
		close(added)
		if err := <-answers; err != nil || imports != 1 {
			t.Errorf("%d imports, %v", imports, err)
		}
		do = importer(ctx, nil, func(members.ImportRequest) error { imports++; return nil })
		do(members.ImportRequest{Number: 2}, answer)
		why := errors.New("the node ends")
		end(why)
		if err := <-answers; !errors.Is(err, why) || imports != 1 {
			t.Errorf("%d imports, %v", imports, err)
		}
	})
}

// A node of another job ends with 0 only if it was a node of the cluster and left in order.
func TestResultOfPilot(t *testing.T) {
	r := new(run)
	r.Log = slog.New(slog.DiscardHandler)
	closed := func(reason string) error {
		return fmt.Errorf("wait: %w", &rendezvous.ClosedError{Node: "n1", Reason: reason})
	}
	left := "it has left the cluster"
	for name, test := range map[string]struct {
		err    error
		joined bool
		code   int
	}{
		"left":                     {closed(left), true, 0},
		"the cluster has ended":    {closed(members.RunEnded), true, 0},
		"ended before it joined":   {closed(members.RunEnded), false, exitcode.Unavailable},
		"refused":                  {closed("no room for it"), false, exitcode.Unavailable},
		"refused with its plan":    {closed("a malformed message"), true, exitcode.Unavailable},
		"closed by this node":      {&rendezvous.ClosedError{Node: "n1", Reason: left, Here: true}, true, exitcode.Unavailable},
		"a failure of this node":   {exitcode.Wrap(exitcode.NoSpace, errors.New("disk full")), true, exitcode.NoSpace},
		"another one without code": {errors.New("bug"), true, exitcode.Internal},
	} {
		if code := exitcode.Of(r.resultOfPilot(test.err, test.joined)); code != test.code {
			t.Errorf("%s: exit code %d, want %d", name, code, test.code)
		}
	}
}
