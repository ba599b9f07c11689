package launch

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// guard is a shell that outlives this process. If this process is killed, the shell
// sends SIGINT to srun, which passes it on, and the step ends in order.
//
// A parent-death signal cannot do that. It comes when the thread ends that started
// srun, and again for each thread that inherits srun before it ends, too. At a
// second SIGINT within a second, srun has its step killed at once.
//
// The shell does not start srun: dash drops the variables whose names are no shell
// identifiers, such as exported functions of bash.
type guard struct {
	// shell is nil where no shell could be started. The step then runs without a
	// guard.
	shell *exec.Cmd
	// alive is the shell's input. Its end without a last line means that this
	// process was killed.
	alive *os.File
	once  sync.Once
}

const (
	guardShell = "/bin/sh"
	// guardScript reads the process ID of srun, and a line at the end. Without a
	// process ID, or with an empty one, srun was not started.
	guardScript = `trap "" HUP INT QUIT TERM; read -r srun && { read -r ended || [ ! "$srun" ] || kill -INT "$srun"; }`
)

func startGuard(shell string) *guard {
	orders, alive, err := os.Pipe()
	if err != nil {
		return &guard{}
	}
	defer orders.Close()
	g := &guard{shell: exec.Command(shell, "-c", guardScript), alive: alive}
	g.shell.Stdin = orders
	g.shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := g.shell.Start(); err != nil {
		alive.Close()
		return &guard{}
	}
	return g
}

// watch has the guard interrupt srun if this process is killed from now on.
func (g *guard) watch(srun int) {
	if g.shell != nil {
		_, _ = fmt.Fprintln(g.alive, srun) // without its shell, the step runs unguarded
	}
}

// end ends the guard. It can be called twice.
func (g *guard) end() {
	g.once.Do(func() {
		if g.shell == nil {
			return
		}
		_, _ = fmt.Fprintln(g.alive)
		g.alive.Close()
		_ = g.shell.Wait()
	})
}
