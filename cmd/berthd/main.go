// Command berthd is the daemon of the site network.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"berth.dev/berth/internal/site/berthd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := berthd.Main(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
