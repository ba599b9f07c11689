// Package linux wraps the kernel interfaces that berth uses in typed calls.
// Their errors name the action and the object. The package makes no decisions
// and imports no other package of berth.
package linux
