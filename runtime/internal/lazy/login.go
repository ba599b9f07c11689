package lazy

import "errors"

// Login is a user's login at a registry: a user and password or, without a user, a
// token that other tokens are requested with. It is never written to a disk.
type Login struct{ User, Secret string }

// errForgotten is the error for a login that no process has in memory any more.
var errForgotten = errors.New("the password of the registry is not known any more")
