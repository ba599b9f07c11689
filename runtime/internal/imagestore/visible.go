package imagestore

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// AwaitVisible returns nil when the kubelet can see an image, and an error when ctx ends. CRI
// learns of a new image by an event, some milliseconds after the image gets its name. A
// kubelet that asked in between would try to pull the image.
func AwaitVisible(ctx context.Context, conn grpc.ClientConnInterface, name string) error {
	service := cri.NewImageServiceClient(conn)
	wait := time.NewTicker(2 * time.Millisecond)
	defer wait.Stop()
	for {
		answer, err := service.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
		if err == nil && answer.Image != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the kubelet to see image %s: %w", name, ctx.Err())
		case <-wait.C:
		}
	}
}
