package lazy

import (
	"context"
	"errors"
)

// Login is a user's with a registry: a password, or with no user a token that gets
// others. It is never written to a disk.
type Login struct{ User, Secret string }

type loginsKey struct{}

// WithLogins has layers that are made with a context asked for with the logins that
// get returns for a registry's host, as the pull is for which they are made.
func WithLogins(ctx context.Context, get func(ctx context.Context, host string) (Login, error)) context.Context {
	return context.WithValue(ctx, loginsKey{}, get)
}

// loginFor returns the login for a host; an empty one where none is known.
func loginFor(ctx context.Context, host string) (Login, error) {
	get, ok := ctx.Value(loginsKey{}).(func(context.Context, string) (Login, error))
	if !ok {
		return Login{}, nil
	}
	return get(ctx, host)
}

// errForgotten is of logins that nobody has in memory any more.
var errForgotten = errors.New("the password of the registry is not known any more")
