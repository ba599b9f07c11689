// Command mksif puts a squashfs image into a SIF file, by the library of the
// format's own authors, as Apptainer does.
//
//	mksif [-arch amd64] -o OUT.sif SQUASHFS
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/sylabs/sif/v2/pkg/sif"
)

func main() {
	arch := flag.String("arch", runtime.GOARCH, "architecture of the image, as Go says it")
	out := flag.String("o", "", "file to write")
	flag.Parse()
	if flag.NArg() != 1 || *out == "" {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *arch, *out); err != nil {
		fmt.Fprintf(os.Stderr, "mksif: %v\n", err)
		os.Exit(1)
	}
}

func run(squashfs, arch, out string) error {
	content, err := os.Open(squashfs)
	if err != nil {
		return err
	}
	defer content.Close()
	// As in a file that was built: a recipe comes first.
	recipe, err := sif.NewDescriptorInput(sif.DataDeffile, strings.NewReader("bootstrap: localimage\n"))
	if err != nil {
		return err
	}
	root, err := sif.NewDescriptorInput(sif.DataPartition, content,
		sif.OptPartitionMetadata(sif.FsSquash, sif.PartPrimSys, arch))
	if err != nil {
		return err
	}
	image, err := sif.CreateContainerAtPath(out, sif.OptCreateDeterministic(),
		sif.OptCreateWithLaunchScript("#!/usr/bin/env run-singularity\n"), sif.OptCreateWithDescriptors(recipe, root))
	if err != nil {
		return err
	}
	return image.UnloadContainer()
}
