package system

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/bench/internal/step"
)

// unpacked unpacks the image's archive on both hosts before the trials.
type unpacked struct{ place Place }

func (u unpacked) Prepare(ctx context.Context) error {
	_, err := u.place.onPair(ctx, step.UnpackArg, u.place.Archive)
	return err
}

func (u unpacked) Close(ctx context.Context) error {
	_, err := u.place.onPair(ctx, step.RemoveArg, u.place.Archive)
	return err
}

// bare runs a task as a plain step, with the unpacked files of the image.
type bare struct{ unpacked }

func (b *bare) Check(ctx context.Context) (map[string]string, error) {
	versions := map[string]string{}
	const ownBerth = "berth beside the bench"
	// If a task's program runs berth itself, only this records berth's version.
	if own, err := (&berth{place: b.place, name: ownBerth, program: b.place.Berth}).Check(ctx); err == nil {
		versions[ownBerth] = own["berth"] + ", " + own[programsOf+ownBerth]
	}
	if !b.place.inSlurm() {
		return versions, nil
	}
	version, err := b.place.ask(ctx, "srun", "--version")
	versions["slurm"] = strings.TrimPrefix(version, "slurm ")
	return versions, err
}

func (b *bare) Run(ctx context.Context, task Task) (Output, error) {
	if task.Sequence != nil {
		return b.sequence(ctx, *task.Sequence)
	}
	if task.Server != nil && task.Server.At != OnHost {
		return Output{}, &Unsupported{"bare metal has no pods and no Services"}
	}
	return b.place.withServer(ctx, task, func(args []string) (Output, error) {
		// Each kind of a container's storage is compared with a folder of the host.
		return b.place.withFolder(ctx, task.Folder != NoFolder, func(folder string) (Output, error) {
			argv := b.place.measuredThrough(b.place.host(0), b.place.Archive, nil, replace(args, FolderHere, folder), task.Window)
			return noted(b.place.run(ctx, argv, ""))
		})
	})
}

// withServer starts the task's server on bare metal, if it has one there, and calls run with
// the task's arguments, which contain the server's address. Then it ends the server.
func (p Place) withServer(ctx context.Context, task Task, run func(args []string) (Output, error)) (Output, error) {
	if task.Images != nil {
		return Output{}, &Unsupported{"it runs programs, and takes no times of images"}
	}
	if task.Sequence != nil {
		return Output{}, &Unsupported{"it runs one program, and has no cluster"}
	}
	if task.Server == nil || task.Server.At != OnHost {
		return run(task.Args)
	}
	address, err := p.serverAddress(ctx)
	if err != nil {
		return Output{}, err
	}
	stop, err := p.start(ctx, p.step(p.lastHost(), p.served(*task.Server)))
	if err != nil {
		return Output{}, err
	}
	defer stop()
	return run(replace(task.Args, ServerHere, address))
}

// served returns the command of a server that reports when it listens.
func (p Place) served(server Server) []string {
	own := []string{p.Self, step.Arg, "--listening", strconv.Itoa(server.Port), "--image", p.Archive, "--"}
	return append(own, server.Args...)
}

// withServers is like withServer for several tasks. It starts each distinct server once.
func (p Place) withServers(ctx context.Context, tasks []Task, run func(tasks []Task) error) error {
	server := slices.IndexFunc(tasks, func(t Task) bool { return t.Server != nil && t.Server.At == OnHost })
	if server < 0 {
		return run(tasks)
	}
	same := tasks[server].Server
	_, err := p.withServer(ctx, tasks[server], func([]string) (out Output, err error) {
		address, err := p.serverAddress(ctx)
		if err != nil {
			return out, err
		}
		ready := slices.Clone(tasks)
		for i, t := range tasks {
			if t.Server != nil && t.Server.At == OnHost && t.Server.is(same) {
				ready[i].Args, ready[i].Server = replace(t.Args, ServerHere, address), nil
			}
		}
		return out, p.withServers(ctx, ready, run)
	})
	return err
}

// lastHost returns the host for servers: the second, if the job has several and SameHost is
// not set, otherwise the first.
func (p Place) lastHost() []string {
	if !p.inSlurm() {
		return nil
	}
	if p.SameHost {
		return p.host(0)
	}
	return p.host(min(len(p.Hosts), pair) - 1)
}

// serverAddress returns the last host's address for clients. Host names are
// unknown in some containers.
func (p Place) serverAddress(ctx context.Context) (string, error) {
	if !p.inSlurm() {
		return ownAddress()
	}
	host := p.lastHost()[0]
	found, err := net.DefaultResolver.LookupIP(ctx, "ip4", host)
	if err != nil {
		return "", fmt.Errorf("look up the server's host %s: %w", host, err)
	}
	return found[0].String(), nil
}

// ownAddress returns an address of this machine other than the loopback's,
// because containers have their own loopback.
func ownAddress() (string, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("look for an address of this machine: %w", err)
	}
	for _, address := range addresses {
		if ip, ok := address.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && ip.IP.To4() != nil {
			return ip.IP.String(), nil
		}
	}
	return "", fmt.Errorf("this machine has no address but the loopback's, and containers do not reach that")
}

// withFolder calls run with a temporary folder of the first host, and removes it afterwards.
// Without Slurm, the first host is this machine. If no folder is wanted, run gets "".
func (p Place) withFolder(ctx context.Context, wanted bool, run func(folder string) (Output, error)) (Output, error) {
	if !wanted {
		return run("")
	}
	made, err := p.ask(ctx, "mktemp", "-d", "-t", "berth-bench-XXXXXX")
	if err != nil {
		return Output{}, fmt.Errorf("make a folder for the measurement: %w", err)
	}
	out, err := run(made)
	if _, wrong := p.ask(context.WithoutCancel(ctx), "rm", "-rf", made); wrong != nil && err == nil {
		err = fmt.Errorf("remove the folder of the measurement: %w", wrong)
	}
	return out, err
}

// replace returns a copy of args with each occurrence of a text replaced.
func replace(args []string, what, by string) []string {
	replaced := make([]string, len(args))
	for i, arg := range args {
		replaced[i] = strings.ReplaceAll(arg, what, by)
	}
	return replaced
}

// found returns an error if a program is missing on the first host, or if the image of the
// programs is missing here. programs maps each program to the Debian package that has it.
func (p Place) found(ctx context.Context, programs map[string]string) error {
	var missing []string
	for program, from := range programs {
		if p.inSlurm() {
			if _, err := p.ask(ctx, "sh", "-c", `command -v "$0"`, program); err == nil {
				continue
			}
		} else if _, err := exec.LookPath(program); err == nil {
			continue
		}
		missing = append(missing, fmt.Sprintf("%s is missing: apt-get install %s", program, from))
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s", strings.Join(missing, "; "))
	}
	if _, err := os.Stat(p.Archive); err != nil {
		return fmt.Errorf("the image of the programs: %w", err)
	}
	return nil
}
