package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	runtimePoll = 3 * time.Millisecond
	runtimeMost = time.Minute
	// networkMost limits the wait for the pod network, beyond the wait for the
	// runtime. After that the node starts and reports that it is not ready.
	networkMost = 3 * time.Second
)

// awaitRuntime returns when containerd, which starts at the same moment, takes
// requests and has a pod network. The kubelet would find out as well, but
// looks again only after two or five seconds.
func awaitRuntime(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, runtimeMost, errors.New("gave up after a minute"))
	defer cancel()
	// gRPC backs off for a second when a dial fails, so the socket first.
	err := poll(ctx, func() error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			conn.Close()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("wait for containerd at %s: %w", socket, err)
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to containerd at %s: %w", socket, err)
	}
	defer conn.Close()
	client := cri.NewRuntimeServiceClient(conn)
	var up time.Time
	err = poll(ctx, func() error {
		reply, err := client.Status(ctx, &cri.StatusRequest{})
		if err != nil {
			return err
		}
		runtime, network := conditions(reply.GetStatus())
		if runtime != nil {
			return runtime
		}
		if up.IsZero() {
			up = time.Now()
		}
		if network != nil && time.Since(up) < networkMost {
			return network
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("wait for containerd's CRI service at %s: %w", socket, err)
	}
	return nil
}

// conditions returns what keeps the runtime, and its network, from working.
func conditions(s *cri.RuntimeStatus) (runtime, network error) {
	runtime, network = errors.New("runtime has no condition"), errors.New("network has no condition")
	for _, c := range s.GetConditions() {
		var err error
		if !c.Status {
			err = fmt.Errorf("%s is false: %s: %s", c.Type, c.Reason, c.Message)
		}
		switch c.Type {
		case cri.RuntimeReady:
			runtime = err
		case cri.NetworkReady:
			network = err
		}
	}
	return runtime, network
}

func poll(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		case <-time.After(runtimePoll):
		}
	}
}
