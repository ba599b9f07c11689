package lazy

import "errors"

// Login is a user's with a registry: a password, or with no user a token that gets
// others. It is never written to a disk.
type Login struct{ User, Secret string }

// errForgotten is of logins that nobody has in memory any more.
var errForgotten = errors.New("the password of the registry is not known any more")
