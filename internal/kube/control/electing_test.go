package control

import (
	"context"
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

func TestRequestsOutliveElection(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		answers []error
		want    error
	}{
		"a leader is chosen":   {[]error{rpctypes.ErrNoLeader, rpctypes.ErrLeaderChanged, nil}, nil},
		"something else fails": {[]error{rpctypes.ErrTimeout, broken}, broken},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			err := whileElecting(t.Context(), func() error {
				asked++
				return test.answers[asked-1]
			})
			if !errors.Is(err, test.want) || asked != len(test.answers) {
				t.Errorf("%v after %d questions, want %v after %d", err, asked, test.want, len(test.answers))
			}
		})
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := whileElecting(ended, func() error { return rpctypes.ErrNoLeader }); !errors.Is(err, rpctypes.ErrNoLeader) {
		t.Errorf("at the end: %v", err)
	}
}
