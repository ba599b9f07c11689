package fastpath

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/filter"
)

// Confine installs the filter of a pod's processes on the calling thread and its
// descendants, and sends its descriptor to a Switch at a unix socket, as an OCI runtime
// does for linux.seccomp.listenerPath. The thread must be locked. From then on its
// calls wait for the Switch. alone is set in a cluster of one node. If memory, in
// bytes, is not 0, sysinfo(2) returns it instead of the machine's.
func Confine(socket, metadata string, alone bool, memory uint64) error {
	if memory > 0 {
		metadata += " " + strconv.FormatUint(memory, 10)
	}
	return confine(socket, metadata, filter.New(filter.Rules{Alone: alone, Memory: memory > 0}))
}

func confine(socket, metadata string, program []unix.SockFilter) error {
	conn, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("deliver a container's filter: %w", err)
	}
	defer unix.Close(conn)
	if err := unix.Connect(conn, &unix.SockaddrUnix{Name: socket}); err != nil {
		return fmt.Errorf("deliver a container's filter to %s: %w", socket, err)
	}
	state, err := json.Marshal(processState{Version: "1.2.0", Fds: []string{filterName}, PID: os.Getpid(), Metadata: metadata})
	if err != nil {
		return fmt.Errorf("encode the state of a container: %w", err)
	}
	listener, err := linux.ForceFilter(program)
	if err != nil {
		return err
	}
	defer unix.Close(listener)
	if err := unix.Sendmsg(conn, state, unix.UnixRights(listener), nil, 0); err != nil {
		return fmt.Errorf("deliver a container's filter to %s: %w", socket, err)
	}
	return nil
}

// processState is the ContainerProcessState of the OCI runtime specification.
type processState struct {
	Version  string   `json:"ociVersion"`
	Fds      []string `json:"fds"`
	PID      int      `json:"pid"`
	Metadata string   `json:"metadata"`
}

// filterName is the specification's name for the descriptor of a filter.
const filterName = "seccompFd"
