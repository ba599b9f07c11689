package linux

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// AwaitPidfd returns when the process of a pidfd has ended, or with an error when ctx has.
func AwaitPidfd(ctx context.Context, pidfd int) error {
	reader, writer, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("wait for a process: %w", err)
	}
	defer reader.Close()
	stop := context.AfterFunc(ctx, func() { writer.Close() })
	defer func() {
		if stop() {
			writer.Close()
		}
	}()
	for {
		poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}, {Fd: int32(reader.Fd()), Events: unix.POLLIN}}
		_, err := unix.Poll(poll, -1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for a process: %w", err)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case poll[0].Revents != 0:
			return nil
		}
	}
}
