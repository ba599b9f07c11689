// Command containerd is berth's containerd, for 'berth bench', with the
// snapshotter of github.com/containerd/stargz-snapshotter. That snapshotter is a
// program beside it, as a proxy plugin, in the same namespaces and so without any
// privilege of the host. This program replaces containerd in a folder like
// libexec/berth, where the original is called containerd-berth.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
)

// original is berth's own containerd, in the folder of this program.
const original = "containerd-berth"

// module is the Go module of the snapshotter. Its daemon, containerd-stargz-grpc,
// is in a module that no proxy has: see serve.
const module = "github.com/containerd/stargz-snapshotter"

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintf(os.Stderr, "containerd with stargz-snapshotter: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	containerd := filepath.Join(filepath.Dir(self), original)
	if len(args) == 4 && args[1] == serveArg {
		return serve(args[2], args[3])
	}
	if len(args) == 2 && args[1] == "--version" {
		fmt.Println("stargz-snapshotter", version())
		command := exec.Command(containerd, args[1])
		command.Stdout, command.Stderr = os.Stdout, os.Stderr
		return command.Run()
	}
	for i, arg := range args[:len(args)-1] {
		if arg != "--config" {
			continue
		}
		if args[i+1], err = besideIt(self, args[i+1]); err != nil {
			return err
		}
	}
	return syscall.Exec(containerd, args, os.Environ())
}

// besideIt starts the snapshotter for a containerd with a configuration, and returns
// the path of that which names it.
func besideIt(self, config string) (string, error) {
	text, err := os.ReadFile(config)
	if err != nil {
		return "", err
	}
	proxied, at, err := proxy(string(text))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", config, err)
	}
	config += ".stargz"
	if err := os.WriteFile(config, []byte(proxied), 0o600); err != nil {
		return "", err
	}
	// The snapshotter ends with the thread that has started it: this one becomes
	// containerd.
	runtime.LockOSThread()
	command := exec.Command(self, serveArg, at.root, at.hosts)
	ready, started, err := os.Pipe()
	if err != nil {
		return "", err
	}
	command.Stderr, command.ExtraFiles = os.Stderr, []*os.File{started}
	command.Env = append(os.Environ(), socketEnv+"="+at.socket)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		return "", fmt.Errorf("start the snapshotter: %w", err)
	}
	_ = started.Close()
	if n, err := ready.Read(make([]byte, 1)); n != 1 {
		return "", fmt.Errorf("the snapshotter has not begun to listen: %w", err)
	}
	return config, ready.Close()
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == module {
				return m.Version
			}
		}
	}
	return "unknown"
}
