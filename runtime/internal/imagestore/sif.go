package imagestore

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/freespace"
	"berth.dev/berth/runtime/internal/inplace"
	"berth.dev/berth/runtime/internal/sif"
)

// isSIF reports whether a file begins like a SIF file.
func isSIF(file *os.File) bool {
	start := make([]byte, 64)
	_, err := file.ReadAt(start, 0)
	return err == nil && sif.Is(start)
}

// readSIF puts the image of a SIF file into a store, as an image with one layer.
func readSIF(ctx context.Context, store content.Store, guard *freespace.Guard, file *os.File, b budget.Budget) (index ocispec.Index, err error) {
	info, err := file.Stat()
	if err != nil {
		return index, err
	}
	image, err := sif.Open(file, info.Size(), b)
	if err != nil {
		return index, err
	}
	layer, config, err := writeLayer(ctx, store, guard, image)
	if err != nil {
		return index, err
	}
	return writeImage(ctx, store, layer, config)
}

// writeImage puts an image of one layer into a store.
func writeImage(ctx context.Context, store content.Store, layer ocispec.Descriptor, config ocispec.Image) (index ocispec.Index, err error) {
	config.RootFS.DiffIDs = []digest.Digest{layer.Digest}
	config.Architecture = cmp.Or(config.Architecture, runtime.GOARCH)
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Layers: []ocispec.Descriptor{layer},
	}
	if manifest.Config, err = writeJSON(ctx, store, ocispec.MediaTypeImageConfig, config); err != nil {
		return index, err
	}
	desc, err := writeJSON(ctx, store, ocispec.MediaTypeImageManifest, manifest)
	desc.Platform = &config.Platform
	return ocispec.Index{Manifests: []ocispec.Descriptor{desc}}, err
}

// useSIF puts an image with one layer into a store. The layer stands for a SIF file. useSIF
// puts the layer's metadata into a snapshotter's directory. Of the file's content it reads
// only the description. It returns false if the file must be converted.
func useSIF(ctx context.Context, store content.Store, path, snapshotter string, b budget.Budget) (index ocispec.Index, used bool, err error) {
	file, err := os.Open(path)
	if err != nil {
		return index, false, err
	}
	defer file.Close()
	if !isSIF(file) {
		return index, false, nil
	}
	dir, err := os.MkdirTemp(snapshotter, "sif-")
	if err != nil {
		return index, false, err
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, "layer")
	layer, err := inplace.Make(made, file, b)
	if errors.Is(err, sif.ErrTooLarge) {
		return index, false, nil
	}
	if err != nil {
		return index, false, err
	}
	text, err := json.Marshal(layer.Source)
	if err != nil {
		return index, false, err
	}
	desc, err := writePlaceholder(ctx, store, string(text))
	if err == nil {
		err = inplace.Keep(made, snapshotter, desc.Digest)
	}
	if err != nil {
		return index, false, err
	}
	index, err = writeImage(ctx, store, desc, layer.Config)
	return index, true, err
}

func writeLayer(ctx context.Context, store content.Store, guard *freespace.Guard, image *sif.File) (desc ocispec.Descriptor, config ocispec.Image, err error) {
	w, err := content.OpenWriter(ctx, store, content.WithRef("sif-layer"))
	if err != nil {
		return desc, config, err
	}
	defer w.Close()
	buffered := bufio.NewWriterSize(guard.Writer(w), 1<<20)
	if config, err = image.Layer(buffered); err != nil {
		return desc, config, err
	}
	if err := buffered.Flush(); err != nil {
		return desc, config, err
	}
	status, err := w.Status()
	if err != nil {
		return desc, config, err
	}
	desc = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: w.Digest(), Size: status.Offset}
	if err := w.Commit(ctx, desc.Size, desc.Digest); err != nil && !errdefs.IsAlreadyExists(err) {
		return desc, config, err
	}
	return desc, config, nil
}

func writeJSON(ctx context.Context, store content.Store, mediaType string, value any) (ocispec.Descriptor, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("encode %s: %w", mediaType, err)
	}
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(text), Size: int64(len(text))}
	return desc, content.WriteBlob(ctx, store, "sif-"+desc.Digest.Encoded(), bytes.NewReader(text), desc)
}
