// Package cli is berth's command line: a file per command, which turns flags
// into a Spec, calls launch or a mechanism, and prints. It makes no system
// calls and orders no work.
//
// Read main.go first, then run.go with settings.go and progress.go (livesteps.go on
// a terminal). where.go and into.go find the cluster that a command is about. The
// other commands have a file each, by their name. help.go and completion.go
// describe them to a user.
package cli
