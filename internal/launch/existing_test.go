package launch

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/launch/allocation"
)

func TestExistingRefusesOptionsOfOwnClusters(t *testing.T) {
	there := Existing{Kubeconfig: "/home/alice/config"}
	manifests := []string{"job.yaml"}
	for _, test := range []struct {
		name           string
		existing       Existing
		given, command []string
		manifests      []string
		want           string // empty for no error
	}{
		{"all options", Existing{"/config", "mine", true}, []string{"kubeconfig", "namespace", "pin", "file", "logs", "grace", "quiet"}, nil, manifests, ""},
		{"none", Existing{}, []string{"image", "ha"}, []string{"true"}, nil, ""},
		{"options of a cluster", there, []string{"kubeconfig", "image", "ha", "file"}, nil, manifests, "omit --image, --ha,"},
		{"a command", there, []string{"kubeconfig"}, []string{"./script.sh"}, nil, "KUBECONFIG=/home/alice/config ./script.sh"},
		{"no manifest", there, []string{"kubeconfig"}, nil, nil, "-f FILE"},
		{"pinned without a cluster", Existing{Pin: true}, []string{"pin"}, nil, manifests, "--kubeconfig FILE"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.existing.Check(test.given, test.command, test.manifests)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// The owner expires after the end of the job, as Slurm knows it now. While Slurm does not
// answer, the last answer counts.
func TestOwnerFollowsTimeLimit(t *testing.T) {
	said, slurmErr := "", error(nil)
	log := slog.New(slog.DiscardHandler)
	job := allocation.New(slurm.Job{ID: "7", Place: slurm.PlaceBatch}, log)
	job.Ask = func(context.Context, ...string) ([]byte, error) { return []byte(said), slurmErr }
	r := &existingRun{userWorkload: userWorkload{Options: Options{Log: log}, allocation: job}}
	at := func(clock string) time.Time {
		end, err := time.ParseInLocation("2006-01-02T15:04:05", clock, time.Local)
		if err != nil {
			t.Fatal(err)
		}
		return end
	}
	for _, step := range []struct {
		name, said string
		err        error
		want       time.Time // zero for a time from now
	}{
		{"not known yet", "", errors.New("no answer"), time.Time{}},
		{"known", "JobId=7 JobState=RUNNING EndTime=2126-01-01T12:00:00 PreemptTime=None", nil, at("2126-01-01T12:01:30")},
		{"extended", "JobId=7 JobState=RUNNING EndTime=2126-01-01T13:00:00 PreemptTime=None", nil, at("2126-01-01T13:01:30")},
		{"no answer", "", errors.New("no answer"), at("2126-01-01T13:01:30")},
		{"unlimited", "JobId=7 JobState=RUNNING EndTime=Unknown PreemptTime=None", nil, time.Time{}},
		{"unlimited, no answer", "", errors.New("no answer"), time.Time{}},
	} {
		said, slurmErr = step.said, step.err
		before := time.Now()
		expires, limited := r.nextExpiry(t.Context())
		if limited == step.want.IsZero() || limited && !expires.Equal(step.want) || !limited && expires.Before(before.Add(ownerLife)) {
			t.Errorf("%s: got %v, limited %v, want %v", step.name, expires, limited, step.want)
		}
		r.expires, r.limited = expires, limited
	}
}

// Slurm lets a job run on after its time limit, for up to half a minute, or for OverTimeLimit.
// Meanwhile the owner must stay, also if Slurm does not answer.
func TestOwnerOutlivesRunAfterTimeLimit(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	job := allocation.New(slurm.Job{ID: "7", Place: slurm.PlaceBatch}, log)
	r := &existingRun{userWorkload: userWorkload{Options: Options{Log: log}, allocation: job}}
	for _, slurmErr := range []error{nil, errors.New("no answer")} {
		job.Ask = func(context.Context, ...string) ([]byte, error) {
			return []byte("JobId=7 JobState=RUNNING EndTime=2026-01-01T12:00:00 PreemptTime=None"), slurmErr
		}
		before := time.Now()
		expires, limited := r.nextExpiry(t.Context())
		if !limited || expires.Before(before.Add(afterEnd)) || expires.After(time.Now().Add(afterEnd)) {
			t.Errorf("at %v, Slurm's error %v: the owner expires at %v, limited %v", before, slurmErr, expires, limited)
		}
		r.expires, r.limited = before, true // as a while later
	}
}
