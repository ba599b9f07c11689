package task

import (
	"fmt"
	"os"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"berth.dev/berth/runtime/internal/bundle"
	"berth.dev/berth/runtime/internal/podlink"
)

// runcOptions returns the options for creating a container. binary is the name of the
// program to use instead of runc, or empty for runc. containerd passes no options, because
// it knows only the options of runc's own shim.
//
// The container gets no session keyring. The kernel counts keyrings by user, by
// default 200 at most, and a pod would take two or more.
func runcOptions(binary string) (*anypb.Any, error) {
	made, err := typeurl.MarshalAnyToProto(&options.Options{BinaryName: binary, NoNewKeyring: true})
	if err != nil {
		return nil, fmt.Errorf("encode options of runc: %w", err)
	}
	return made, nil
}

// takeFastPath makes berth-runc install the fast path's filter on the processes of all
// containers of the pod except the sandbox. If it does not, it logs the reason. The shim
// serves only one pod, so it can pass the pod's identity in its own environment.
func (s *Service) takeFastPath(id string, c bundle.Container) {
	stay := func(why string, args ...any) {
		s.log.Info("connections of this pod stay on the network between the nodes: "+why, append(args, "container", id)...)
	}
	var err error
	switch {
	case c.Listens:
		// A process has at most one listener. This container keeps the listener of its
		// profile. So do later containers, which may share its processes.
		stay("its seccomp profile has its own listener")
		err = os.Unsetenv(s.fastPath)
	case c.Network == "":
		return // not the sandbox, or on the node's network
	case c.Overlay:
		stay("its annotation requests that")
	default:
		var identity string
		if identity, err = podlink.Identity(c.Network); err == nil {
			err = os.Setenv(s.fastPath, identity)
		}
	}
	if err != nil {
		stay("its address is unknown", "error", err)
	}
}
