package main

import (
	"errors"
	"fmt"
	"path"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// linkLibraries makes links in a folder that every dynamic linker searches, and
// beside the libraries. Rejected alternatives: ldconfig on the container's cache
// needs an ldconfig, and a variable (LD_LIBRARY_PATH) is lost when a program
// sets its own.
//
// A link replaces a library of the image with the same name, because only the library of
// the host's driver works. The image itself does not change.
func linkLibraries(root, folder string, links []string) error {
	rootFD, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open root file system %s: %w", root, err)
	}
	defer unix.Close(rootFD)
	beside, err := openIn(rootFD, folder)
	if err != nil {
		return err
	}
	defer unix.Close(beside)
	searched, err := openSearched(rootFD)
	hasLinker := !errors.Is(err, unix.ENOENT)
	if err != nil && hasLinker {
		return err
	}
	if hasLinker {
		defer unix.Close(searched)
	}
	for _, link := range links {
		name, file, ok := strings.Cut(link, "=")
		if !ok || strings.Contains(name+file, "/") {
			return fmt.Errorf("link %q: give NAME=FILE", link)
		}
		if name != file {
			if err := replace(beside, name, file); err != nil {
				return err
			}
		}
		if hasLinker {
			if err := replace(searched, name, path.Join(folder, file)); err != nil {
				return err
			}
		}
	}
	return nil
}

// openSearched opens the first of the dynamic linker's default folders that the image has:
// the folder of Debian, of Red Hat and SUSE, or of other distributions. It returns ENOENT if
// the image has none.
func openSearched(root int) (int, error) {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	for _, folder := range []string{"/usr/lib/" + triplet, "/usr/lib64", "/lib64", "/usr/lib", "/lib"} {
		fd, err := openIn(root, folder)
		if !errors.Is(err, unix.ENOENT) {
			return fd, err
		}
	}
	return -1, unix.ENOENT
}

// openIn opens a folder of the container. It resolves links within the container's root.
func openIn(root int, folder string) (int, error) {
	fd, err := unix.Openat2(root, folder, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, fmt.Errorf("open the image's folder %s: %w", folder, err)
	}
	return fd, nil
}

// replace makes a symbolic link, and replaces an existing file with its name.
func replace(folder int, name, target string) error {
	err := unix.Symlinkat(target, folder, name)
	if errors.Is(err, unix.EEXIST) {
		if err = unix.Unlinkat(folder, name, 0); err == nil {
			err = unix.Symlinkat(target, folder, name)
		}
	}
	if err != nil {
		return fmt.Errorf("link library %s to %s: %w", name, target, err)
	}
	return nil
}
