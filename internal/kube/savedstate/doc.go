// Package savedstate keeps the objects of a cluster in a folder of the user, from
// one job to the next. It defines the file and its checks, the key that encrypts
// Secrets, and which run may write. It does not interpret objects.
package savedstate
