package jobend

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/access/tunnel"
	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/rundir"
)

// Arg is the argument that makes the program the far end of a tunnel; main then
// calls Main. A step starts the program this way.
const Arg = "job-end"

// Main runs the far end on standard input and output, and returns its exit status.
func Main() int {
	// Every process of the job receives the signals of scancel and of the time
	// limit. The cluster lives on for its grace period, and the user may want to
	// look at it then. The far end ends with the cluster, with the near end,
	// or by Slurm's SIGKILL.
	signal.Notify(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	stream, err := standardStream()
	if err == nil {
		node := nodeName(os.Getenv)
		places := rundir.MemoryPlaces(os.Getenv)
		err = tunnel.Serve(context.Background(), stream, tunnel.Answer{Version: cluster.Version(), Node: node},
			func(ctx context.Context, request tunnel.Request) (*tunnel.Cluster, error) {
				return find(ctx, places, node, request)
			})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth:", err)
		return 1
	}
	return 0
}

func nodeName(getenv func(string) string) string {
	if name := getenv("SLURMD_NODENAME"); name != "" {
		return name
	}
	name, err := os.Hostname()
	if err != nil {
		return "this node"
	}
	return name
}

// standardStream returns standard input and output as one stream that can be closed
// while it is read.
func standardStream() (io.ReadWriteCloser, error) {
	for _, fd := range []int{0, 1} {
		if err := unix.SetNonblock(fd, true); err != nil {
			return nil, fmt.Errorf("prepare standard input and output: %w", err)
		}
	}
	in, out := os.NewFile(0, "stdin"), os.NewFile(1, "stdout")
	// With srun --unbuffered, slurmstepd makes standard output a terminal, which
	// must not change any byte.
	if state, err := unix.IoctlGetTermios(1, unix.TCGETS); err == nil {
		state.Oflag &^= unix.OPOST
		if err := unix.IoctlSetTermios(1, unix.TCSETS, state); err != nil {
			return nil, fmt.Errorf("prepare standard output: %w", err)
		}
	}
	return standard{in, out}, nil
}

type standard struct{ in, out *os.File }

func (s standard) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s standard) Write(p []byte) (int, error) { return s.out.Write(p) }
func (s standard) Close() error {
	s.in.Close()
	return s.out.Close()
}
