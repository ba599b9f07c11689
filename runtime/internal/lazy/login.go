package lazy

import "errors"

// Login is a user's login at a registry: a user name and password or, without a
// user name, a refresh token. It is never written to a disk.
type Login struct{ User, Secret string }

// errForgotten is the error if a restart of this process has lost the login.
var errForgotten = errors.New("the password of the registry is not known any more")
