package launch

import (
	"context"
	"testing"
	"testing/synctest"

	"berth.dev/berth/internal/launch/members"
)

// lossRecorder records the nodes that were reported as lost.
type lossRecorder chan string

func (r lossRecorder) Lose(_ context.Context, node, _ string) error { r <- node; return nil }
func (r lossRecorder) Regain(context.Context, string) error         { return nil }

// TestLossIsReportedOnceListed: the pods of a lost head are deleted only after the follower of the
// next head has seen them.
func TestLossIsReportedOnceListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorder := make(lossRecorder, 2)
		reporter, listed := reportOnceListed(recorder)
		go func() {
			if err := reporter.Lose(t.Context(), "n1", "silent"); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		if len(recorder) > 0 {
			t.Error("the loss is reported before the list")
		}
		listed()
		if node := <-recorder; node != "n1" {
			t.Errorf("got %s", node)
		}
		listed() // of a follower that was started again
		if err := reporter.Lose(t.Context(), "n2", "silent"); err != nil || <-recorder != "n2" {
			t.Errorf("a later loss is not reported: %v", err)
		}
	})
}

// TestLossIsReportedWithoutList: a follower that gets no list does not keep the pods of a lost
// node.
func TestLossIsReportedWithoutList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorder := make(lossRecorder, 1)
		reporter, _ := reportOnceListed(recorder)
		if err := reporter.Lose(t.Context(), "n1", "silent"); err != nil || <-recorder != "n1" {
			t.Errorf("the loss is not reported: %v", err)
		}
	})
}

// TestLossInPersistentClusterIsReportedAtOnce: a run on the cluster could place pods on the lost
// node until it is reported, and no follower lists pods there.
func TestLossInPersistentClusterIsReportedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &run{}
		r.Spec.Stay = true
		recorder := make(lossRecorder, 1)
		config := members.MonitorConfig{Reporter: recorder}
		r.awaitList(&config)
		go config.Reporter.Lose(t.Context(), "n1", "silent") //nolint:errcheck // the recorder returns none
		synctest.Wait()
		if len(recorder) == 0 {
			t.Error("the loss is not reported")
		}
	})
}
