package node

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// promptRetry is the pause before the stream of events is opened again.
const promptRetry = time.Second

// followContainers calls changed with the pod of every container that starts or ends.
// The kubelet itself polls the runtime once a second; with a hint to check a pod, it
// reports the end of a job within milliseconds. (Its own feature for this, EventedPLEG,
// is alpha.) A missed event costs only that second.
func followContainers(ctx context.Context, socket string, log *slog.Logger, changed func(types.UID)) {
	for ctx.Err() == nil {
		err := followOnce(ctx, socket, changed)
		if status.Code(err) == codes.Unimplemented {
			return
		}
		log.Debug("The runtime's stream of events ended", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(promptRetry):
		}
	}
}

func followOnce(ctx context.Context, socket string, changed func(types.UID)) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := cri.NewRuntimeServiceClient(conn).GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		return err
	}
	for {
		event, err := stream.Recv()
		if err != nil {
			return err
		}
		uid := event.GetPodSandboxStatus().GetMetadata().GetUid()
		switch event.GetContainerEventType() {
		case cri.ContainerEventType_CONTAINER_STARTED_EVENT, cri.ContainerEventType_CONTAINER_STOPPED_EVENT:
			if uid != "" {
				changed(types.UID(uid))
			}
		}
	}
}
