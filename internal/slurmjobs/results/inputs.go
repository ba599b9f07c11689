package results

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/remotecommand"
)

// Destination is a folder of this host for the files of a volume.
type Destination struct {
	// Root is an existing folder, and Path is below it and need not exist. No file outside
	// Root is written, whatever links there are.
	Root, Path string
	Limits
}

const (
	// InputsSuffix follows the name of an object in the name of the pod that reads its inputs,
	// as WLM-Operator names such pods.
	InputsSuffix = "-job-prepare"
	inputsPath   = "/inputs"
)

// Fetch copies the files of a volume to a folder below the destination, which has the volume's
// name. volume and the pod are as in Collect. If Fetch returns an error, part of the files may be in
// the folder.
func (c Collector) Fetch(ctx context.Context, object *unstructured.Unstructured, volume map[string]any, destination Destination) (Summary, error) {
	name, _ := volume["name"].(string)
	// This tar only waits: its standard input stays empty. What exec prints is in no log.
	pod := c.pod(object, InputsSuffix, volume, path.Join(inputsPath, name), "tar", "-t", "-f", "-")
	var summary Summary
	err := c.withPod(ctx, object, pod, func(_ dynamic.ResourceInterface, pod *unstructured.Unstructured) (err error) {
		summary, err = c.receive(ctx, pod, destination, "tar", "-c", "-f", "-", "-C", inputsPath, name)
		return err
	})
	return summary, err
}

// receive runs a command that writes an archive in a running pod, and unpacks the archive.
func (c Collector) receive(ctx context.Context, pod *unstructured.Unstructured, destination Destination, command ...string) (Summary, error) {
	executor, err := c.stream(pod, "exec", url.Values{"command": command})
	if err != nil {
		return Summary{}, fmt.Errorf("run tar in pod %s: %w", pod.GetName(), err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var stderr tail
	reader, writer := io.Pipe()
	streamed := make(chan error, 1)
	go func() {
		err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: writer, Stderr: &stderr})
		writer.CloseWithError(err) // the end of the archive, if err is nil
		streamed <- err
	}()
	summary, err := destination.Unpack(ctx, reader)
	cancel() // if Unpack failed, tar has not ended
	if streamErr := <-streamed; err != nil && streamErr != nil && errors.Is(err, streamErr) {
		return summary, fmt.Errorf("read the volume: tar in pod %s: %w: %s", pod.GetName(), streamErr, stderr.String())
	}
	return summary, err
}

// Unpack unpacks a tar archive. It creates folders, regular files and hard links between them. Files
// get the permissions of the archive, and belong to this user.
func (d Destination) Unpack(ctx context.Context, in io.Reader) (Summary, error) {
	var summary Summary
	in = untilDone{ctx, in}
	archive := tar.NewReader(in)
	folder, err := d.open()
	if err != nil {
		return summary, err
	}
	defer folder.Close()
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, in)
			return summary, err
		}
		if err != nil {
			return summary, fmt.Errorf("read the archive: %w", err)
		}
		name := filepath.Clean(header.Name)
		if !filepath.IsLocal(name) {
			return summary, &Final{fmt.Errorf("the archive has a file %q outside its folder", header.Name)}
		}
		summary.Files++
		summary.Bytes += max(header.Size, 0)
		if summary.Files > d.Files || summary.Bytes > d.Bytes {
			return summary, &Final{fmt.Errorf("there are more than %d files or %d bytes", d.Files, d.Bytes)}
		}
		left, err := unpackEntry(folder, name, header, archive)
		if err != nil {
			return summary, fmt.Errorf("write %s: %w", filepath.Join(d.Root, d.Path, name), err)
		}
		if left {
			summary.Files--
			summary.LeftOut++
		}
	}
}

// open opens the folder, and creates it if it does not exist.
func (d Destination) open() (*os.Root, error) {
	root, err := os.OpenRoot(d.Root)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if err := root.MkdirAll(d.Path, 0o777); err != nil {
		return nil, fmt.Errorf("make the folder for the inputs: %w", err)
	}
	folder, err := root.OpenRoot(d.Path)
	if err != nil {
		return nil, fmt.Errorf("open the folder for the inputs: %w", err)
	}
	return folder, nil
}

// unpackEntry writes one entry of an archive, and reports whether it left the entry out. It replaces
// a file, so that it does not write to a file that a link names.
func unpackEntry(folder *os.Root, name string, header *tar.Header, content io.Reader) (left bool, err error) {
	mode := header.FileInfo().Mode().Perm()
	if header.Typeflag == tar.TypeDir {
		return false, folder.MkdirAll(name, mode|0o700)
	}
	if header.Typeflag != tar.TypeReg && header.Typeflag != tar.TypeLink {
		return true, nil
	}
	if err := folder.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return false, err
	}
	if err := folder.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	if header.Typeflag == tar.TypeLink {
		return false, folder.Link(filepath.Clean(header.Linkname), name)
	}
	file, err := folder.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return false, err
	}
	_, err = io.Copy(file, content)
	return false, errors.Join(err, file.Close())
}
