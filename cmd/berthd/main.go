// Command berthd is the daemon of berth's site network.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"berth.dev/berth/internal/sited"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := sited.Main(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
