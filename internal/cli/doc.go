// Package cli is berth's command line: a file per command, which turns flags
// into a Spec, calls launch or a mechanism, and prints. It makes no system
// calls and orders no work.
package cli
