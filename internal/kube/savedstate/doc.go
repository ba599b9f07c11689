// Package savedstate keeps the objects of a cluster in a folder of the user's, from
// one job to the next: the file and what it proves, the key that Secrets are
// sealed with, and which run may write. What is in an object it does not know.
package savedstate
