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

// runcOptions returns options for a container that the runc with that name makes;
// runc itself if the name is empty. containerd passes none: it knows only the options
// of runc's own shim.
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

// takeFastPath makes berth-runc install the fast path's filter on the pod's
// processes, from the first container after the sandbox on, or reports why it
// does not. The shim has one pod, so it can set its own environment.
func (s *Service) takeFastPath(id string, c bundle.Container) {
	stay := func(why string, args ...any) {
		s.log.Info("connections of this pod stay on the network between the nodes: "+why, append(args, "container", id)...)
	}
	var err error
	switch {
	case c.Listens:
		// A process has one listener at most; its containers and those after
		// it, which may share its processes, keep to the profile's.
		stay("its seccomp profile has its own listener")
		err = os.Unsetenv(s.fastPath)
	case c.Network == "":
		return // not the first, or on the node's network
	case c.Overlay:
		stay("its annotation requests that")
	default:
		var identity string
		if identity, err = podlink.Identity(c.Network); err == nil {
			err = os.Setenv(s.fastPath, identity)
		}
	}
	if err != nil {
		stay("it has no address that is known", "error", err)
	}
}
