package task

import (
	"context"
	"encoding/json"
	"fmt"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth.dev/berth/runtime/internal/bundle"
)

// Update applies new limits to a running container. The watcher enforces the
// memory limit if the kernel does not. The remaining limits, if any, go to runc.
func (s *Service) Update(ctx context.Context, r *taskapi.UpdateTaskRequest) (*ptypes.Empty, error) {
	c := s.container(r.ID)
	if c == nil {
		return nil, errgrpc.ToGRPCf(errdefs.ErrNotFound, "container %s is not here", r.ID)
	}
	value, err := typeurl.UnmarshalAny(r.Resources)
	if err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("decode resources of container %s: %w", r.ID, err))
	}
	resources, ok := value.(*specs.LinuxResources)
	if !ok {
		return nil, errgrpc.ToGRPCf(errdefs.ErrInvalidArgument, "resources of container %s are of type %T", r.ID, value)
	}
	s.rebind(r.ID, c, resources)
	memory := bundle.MemoryLimit(resources)
	limited := resources.Memory != nil && resources.Memory.Limit != nil
	if s.node.Controllers != nil {
		s.node.Resources(resources)
		if err := s.updateKernel(ctx, r, resources); err != nil {
			return nil, err
		}
	}
	// Set the memory limit last, because a limit below the use ends the container at once.
	if limited {
		s.limit(r.ID, c, memory)
		s.updateMemory(r.ID, c)
	}
	return &ptypes.Empty{}, nil
}

func (s *Service) updateKernel(ctx context.Context, r *taskapi.UpdateTaskRequest, resources *specs.LinuxResources) error {
	text, err := json.Marshal(resources)
	if err != nil {
		return errgrpc.ToGRPC(fmt.Errorf("encode resources of container %s: %w", r.ID, err))
	}
	r.Resources = &ptypes.Any{TypeUrl: r.Resources.TypeUrl, Value: text}
	_, err = s.TTRPCTaskService.Update(ctx, r)
	return err
}

// Exec adapts the process as Create adapts the first one.
func (s *Service) Exec(ctx context.Context, r *taskapi.ExecProcessRequest) (*ptypes.Empty, error) {
	value, err := typeurl.UnmarshalAny(r.Spec)
	if err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("decode process %s of container %s: %w", r.ExecID, r.ID, err))
	}
	process, ok := value.(*specs.Process)
	if !ok {
		return nil, errgrpc.ToGRPCf(errdefs.ErrInvalidArgument, "process %s of container %s is of type %T", r.ExecID, r.ID, value)
	}
	var adaptedTo bundle.Container
	if c := s.container(r.ID); c != nil {
		adaptedTo = c.Container
		if cpus := s.boundTo(c); cpus.Size() > 0 {
			process.ExecCPUAffinity = &specs.CPUAffinity{Final: cpus.String()}
		}
	}
	s.node.Exec(adaptedTo, process)
	adapted, err := typeurl.MarshalAnyToProto(process)
	if err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("encode process %s of container %s: %w", r.ExecID, r.ID, err))
	}
	r.Spec = adapted
	return s.TTRPCTaskService.Exec(ctx, r)
}
