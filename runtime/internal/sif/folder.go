package sif

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Describe returns the configuration of an unpacked image, such as a sandbox of
// Apptainer or an image on CVMFS, without the architecture. It returns false if the
// image has no description of itself.
func Describe(root *os.Root) (image ocispec.Image, known bool, err error) {
	info, err := root.Stat(path.Clean(own))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return image, false, nil
	}
	if err != nil {
		return image, false, fmt.Errorf("read what an image says of itself: %w", err)
	}
	names := []string{labelsFile}
	scripts, err := fs.ReadDir(root.FS(), path.Clean(environment))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return image, false, fmt.Errorf("read what an image says of itself: %w", err)
	}
	for _, e := range scripts {
		names = append(names, environment+e.Name())
	}
	texts := map[string]string{}
	for _, name := range names {
		if text, err := readText(root, name); err == nil {
			texts[name] = text
		} else if !errors.Is(err, fs.ErrNotExist) {
			return image, false, fmt.Errorf("read what an image says of itself: %w", err)
		}
	}
	return configuration("", texts), true, nil
}

// readText reads the beginning of a file. For anything but a regular file it returns "".
func readText(root *os.Root, name string) (string, error) {
	if info, err := root.Stat(name); err != nil || !info.Mode().IsRegular() {
		return "", err
	}
	file, err := root.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxText))
	return string(text), err
}
