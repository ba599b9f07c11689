package sandbox

import "os"

// Command is a process to start inside the sandbox, as user 0 there.
type Command struct {
	// Name identifies the command in events. No two running commands have the same name.
	Name string
	// Path is the program; Args are its arguments, without the program.
	Path string
	Args []string
	// Env is the whole environment.
	Env []string
	// Log is the path of a file. The command's stdout and stderr are appended to it. If
	// Stdout is set, it receives stdout instead.
	Log    string
	Stdout *os.File `json:"-"`
	// Files become descriptors 3 and up. The caller keeps its copies.
	Files []*os.File `json:"-"`
	// HasStdout is set if the first passed file is stdout.
	HasStdout bool
}
