// Command berth-images brings image archives into a running containerd, and
// images into the folder that runs share.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage: berth-images import --socket PATH [--namespace k8s.io] [--snapshotter overlayfs]
                           [--hosts DIR --mirror ADDRESS] [--budget N] [NAME=]FILE...
       berth-images cache COMMAND --dir DIR [--limit BYTES] [--budget N] ...

import brings archives (docker save, podman save, OCI layout; plain, gzip or
zstd) into containerd and prints one line of JSON per image. With --hosts and
--mirror, containerd asks the mirror before the registries that the images are
named after.

cache works on the folder that runs share, and prints lines of JSON:
  pull [--platform P] [--registry NAME=URL]... IMAGE...
                      fetches images; a Docker configuration with passwords comes
                      by standard input
  import [--platform P] [NAME=]ARCHIVE...
  export IMAGE FILE   writes an archive
  convert [--platform P] --to estargz|zstd IMAGE|ARCHIVE FILE
                      writes an archive with its layers repacked
  bundle [--mount SRC:DST[:ro]]... IMAGE DIR
                      makes an OCI bundle
  ls | gc
  rm IMAGE...
  verify [IMAGE...]`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "import":
		// containerd that ended in the middle of a request is a reason, too, and the import
		// survives that.
		signal.Ignore(syscall.SIGPIPE)
		err = importArchives(ctx, os.Args[2:], os.Stdout)
	case len(os.Args) > 2 && os.Args[1] == "cache":
		// The reader of the output was killed. Then, too, remove incomplete files before exit.
		ctx, stop := signal.NotifyContext(ctx, syscall.SIGPIPE)
		defer stop()
		err = useCache(ctx, os.Args[2], os.Args[3:], os.Stdin, os.Stdout)
	default:
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		if !errors.Is(err, errReported) {
			fmt.Fprintf(os.Stderr, "berth-images: %v\n", err)
		}
		os.Exit(1)
	}
}
