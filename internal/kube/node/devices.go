package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
	_ "unsafe" // for linkname

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet"

	"berth.dev/berth/internal/base/cluster"
)

// devicePlugin offers one resource to the kubelet through the kubelet's device
// plugin interface, so that allocation, checkpoints and restarts are upstream's.
// The plan lists the units, and a CDI specification defines how a device gets
// into a container.
type devicePlugin struct {
	api.UnimplementedDevicePluginServer
	resource cluster.Resource
	stop     <-chan struct{}
}

// GetDevicePluginOptions returns no options.
func (p *devicePlugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch sends the units once: a job's devices stay the same.
func (p *devicePlugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	var list api.ListAndWatchResponse
	for _, unit := range p.resource.Units {
		list.Devices = append(list.Devices, &api.Device{ID: unit.ID, Health: api.Healthy})
	}
	if err := stream.Send(&list); err != nil {
		return err
	}
	select {
	case <-p.stop:
	case <-stream.Context().Done():
	}
	return nil
}

// Allocate returns the CDI names of the devices for each container. It returns an error for
// an unknown unit.
func (p *devicePlugin) Allocate(_ context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	names := map[string]string{}
	for _, unit := range p.resource.Units {
		names[unit.ID] = unit.CDI
	}
	var answer api.AllocateResponse
	for _, container := range r.ContainerRequests {
		var one api.ContainerAllocateResponse
		given := map[string]bool{}
		for _, id := range container.DevicesIds {
			name, known := names[id]
			if !known {
				return nil, fmt.Errorf("allocate %s: there is no unit %s", p.resource.Name, id)
			}
			if !given[name] {
				given[name] = true
				one.CdiDevices = append(one.CdiDevices, &api.CDIDevice{Name: name})
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, &one)
	}
	return &answer, nil
}

// devicesMost limits how long the kubelet may take to register its devices.
const devicesMost = 30 * time.Second

// offerDevices registers the plan's devices with the kubelet, which reports them to the API
// server. It calls known after that, and serves the devices until ctx ends.
func (r *role) offerDevices(ctx context.Context, known func()) error {
	resources := r.plan.Node.Resources
	if len(resources) == 0 {
		known()
		<-ctx.Done()
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for i, resource := range resources {
		group.Go(func() error { return serveDevices(ctx, r.plan.Paths, i, resource) })
	}
	group.Go(func() error {
		if err := r.awaitDevices(ctx); err != nil {
			return unlessDone(ctx, err)
		}
		known()
		return nil
	})
	return unlessDone(ctx, group.Wait())
}

// serveDevices offers one resource. It waits for the kubelet's own socket first, because the
// kubelet removes all sockets from the folder when it starts.
func serveDevices(ctx context.Context, paths cluster.Paths, index int, resource cluster.Resource) error {
	kubeletSocket := filepath.Join(paths.DevicePlugins(), filepath.Base(api.KubeletSocket))
	if err := poll(ctx, func() error { _, err := os.Stat(kubeletSocket); return err }); err != nil {
		return err
	}
	name := fmt.Sprintf("berth-%d.sock", index)
	path := filepath.Join(paths.DevicePlugins(), name)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("offer %s: %w", resource.Name, err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("offer %s: %w", resource.Name, err)
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, &devicePlugin{resource: resource, stop: ctx.Done()})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return server.Serve(listener) })
	group.Go(func() error {
		<-ctx.Done()
		server.Stop()
		return nil
	})
	group.Go(func() error { return registerDevices(ctx, kubeletSocket, name, resource.Name) })
	return group.Wait()
}

func registerDevices(ctx context.Context, kubeletSocket, endpoint, resource string) error {
	conn, err := grpc.NewClient("unix://"+kubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		defer conn.Close()
		_, err = api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
			Version: api.Version, Endpoint: endpoint, ResourceName: resource, Options: &api.DevicePluginOptions{},
		}, grpc.WaitForReady(true))
	}
	if err != nil {
		return fmt.Errorf("offer %s to the kubelet: %w", resource, err)
	}
	return nil
}

//go:linkname syncNodeStatus k8s.io/kubernetes/pkg/kubelet.(*Kubelet).syncNodeStatus
func syncNodeStatus(k *kubelet.Kubelet, ctx context.Context)

// awaitDevices waits until the kubelet knows its devices, and makes it report them to the
// API server. By itself, the kubelet would report them ten seconds later, and pods would
// wait for that.
func (r *role) awaitDevices(ctx context.Context) error {
	select {
	case <-r.made:
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, devicesMost)
	defer cancel()
	if err := poll(ctx, r.missingDevices); err != nil {
		return fmt.Errorf("offer devices: %w", err)
	}
	select {
	case <-r.ready: // the Node exists, and the kubelet has reported everything else
	case <-ctx.Done():
		return fmt.Errorf("report devices: %w", ctx.Err())
	}
	syncNodeStatus(r.kubelet.running.Load(), ctx)
	return nil
}

// missingDevices returns an error while the kubelet does not know all devices.
func (r *role) missingDevices() error {
	capacity, _, _ := r.kubelet.deps.ContainerManager.GetDevicePluginResourceCapacity()
	var missing []string
	for _, resource := range r.plan.Node.Resources {
		if known := capacity[v1.ResourceName(resource.Name)]; known.Value() != int64(len(resource.Units)) {
			missing = append(missing, resource.Name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the kubelet does not know of %s", strings.Join(missing, ", "))
	}
	return nil
}
