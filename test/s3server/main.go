// s3server is versitygw, an S3 server over folders, for tests: s3server ADDRESS FOLDER. Each folder
// in FOLDER is a bucket. The credentials are in ROOT_ACCESS_KEY and ROOT_SECRET_KEY. The
// dependencies of versitygw are in this module, and not in berth's.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: s3server ADDRESS FOLDER")
		os.Exit(2)
	}
	if err := serve(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "s3server:", err)
		os.Exit(1)
	}
}

func serve(address, folder string) error {
	// Not every file system has the extended attributes that hold metadata otherwise.
	store, err := posix.New(folder, meta.NoMeta{}, posix.PosixOpts{})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return embedgw.RunVersityGW(ctx, store, &embedgw.Config{
		Ports: []string{address}, RootUserAccess: os.Getenv("ROOT_ACCESS_KEY"), RootUserSecret: os.Getenv("ROOT_SECRET_KEY"),
		MaxConnections: 100, MaxRequests: 100, MultipartMaxParts: 10000, Quiet: true,
	})
}
