// Package outage repeats requests while an API server does not answer. A control plane that was
// killed is started again, and one that hangs is replaced, so the next request may succeed. What a
// request does belongs to its caller.
package outage

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// pause is the time between two attempts.
const pause = 200 * time.Millisecond

// Is reports whether a request failed because the API server did not answer, or could not handle
// it, as during an election of etcd (status 500 without a reason).
func Is(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, new(*url.Error)) {
		return true
	}
	return errors.As(err, &status) && (status.Status().Code >= http.StatusInternalServerError || status.Status().Code == http.StatusTooManyRequests)
}

// Outlast repeats an attempt until the API server answers or ctx ends. again is true if an earlier
// attempt was not answered, so that it may have taken effect.
func Outlast(ctx context.Context, attempt func(again bool) error) error {
	for again := false; ; again = true {
		err := attempt(again)
		if err == nil || !Is(err) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}
