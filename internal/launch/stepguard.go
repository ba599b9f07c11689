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
type guard struct {
	shell *exec.Cmd
	// alive is the shell's input. Its end without a last line means that this
	// process was killed.
	alive *os.File
	once  sync.Once
}

const (
	// guardScript reads the process ID of srun, and a line at the end.
	guardScript = `trap "" HUP INT QUIT TERM; read -r srun && { read -r ended || kill -INT "$srun"; }`
	// guardedScript tells the guard its process ID, and becomes srun.
	guardedScript = `echo $$ >&3; exec 3>&-; exec "$@"`
)

func startGuard() (*guard, error) {
	orders, alive, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe for the shell that outlives berth: %w", err)
	}
	defer orders.Close()
	g := &guard{shell: exec.Command("/bin/sh", "-c", guardScript), alive: alive}
	g.shell.Stdin = orders
	g.shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := g.shell.Start(); err != nil {
		alive.Close()
		return nil, fmt.Errorf("start the shell that outlives berth: %w", err)
	}
	return g, nil
}

// command returns a command for srun that the guard knows from its first moment.
func (g *guard) command(srun string, args []string) *exec.Cmd {
	command := exec.Command("/bin/sh", append([]string{"-c", guardedScript, "sh", srun}, args...)...)
	command.ExtraFiles = []*os.File{g.alive}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return command
}

// end ends the guard. It can be called twice.
func (g *guard) end() {
	g.once.Do(func() {
		_, _ = fmt.Fprintln(g.alive)
		g.alive.Close()
		_ = g.shell.Wait()
	})
}
