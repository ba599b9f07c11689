// Package archived unpacks layers directly from an archive or a folder of the user,
// without copying their blobs into containerd's store. It neither chooses nor converts
// layers.
package archived

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/typeurl/v2"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/types/known/anypb"
)

// Part is the place of a blob: a file, an offset and a length.
type Part struct {
	Path         string
	Offset, Size int64
}

// Whole returns a Part that covers a whole file.
func Whole(path string) (Part, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Part{}, err
	}
	return Part{Path: path, Size: info.Size()}, nil
}

// payload is the key under which containerd passes a part on to its differs.
const payload = "berth.dev/archived"

// said is the encoding of a Part. Its path is bytes, because JSON text must be UTF-8, and
// paths need not be.
type said struct {
	Path         []byte
	Offset, Size int64
}

// Apply returns an option that makes the differ of a layer read it from the part, if the
// differ calls Of. The option applies to one call, so nothing has to be cleared afterwards,
// and a differ of the same layer from a registry does not see it. Annotations of the layer
// would be passed on, too, but a registry's manifest could set those.
func (p Part) Apply() (diff.ApplyOpt, error) {
	path, err := filepath.Abs(p.Path)
	if err != nil {
		return nil, fmt.Errorf("record where a layer lies: %w", err)
	}
	text, err := json.Marshal(said{[]byte(path), p.Offset, p.Size})
	if err != nil {
		return nil, fmt.Errorf("record where a layer lies: %w", err)
	}
	return diff.WithPayloads(map[string]typeurl.Any{payload: &anypb.Any{TypeUrl: payload, Value: text}}), nil
}

// Of returns the part that Apply has passed on with the options of a call, and reports
// whether there is one.
func Of(ctx context.Context, desc ocispec.Descriptor, opts []diff.ApplyOpt) (p Part, found bool, err error) {
	var config diff.ApplyConfig
	for _, opt := range opts {
		if err := opt(ctx, desc, &config); err != nil {
			return Part{}, false, err
		}
	}
	text, found := config.ProcessorPayloads[payload]
	if !found {
		return Part{}, false, nil
	}
	var at said
	if err := json.Unmarshal(text.GetValue(), &at); err != nil {
		return Part{}, false, fmt.Errorf("read where layer %s lies: %w", desc.Digest, err)
	}
	return Part{string(at.Path), at.Offset, at.Size}, true, nil
}

// ReaderAt opens the part. The caller must check the digest, because the file may have
// been replaced.
func (p Part) ReaderAt(context.Context, ocispec.Descriptor) (content.ReaderAt, error) {
	// Without O_NONBLOCK the open of a pipe with that name would never return.
	file, err := os.OpenFile(p.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a file", p.Path)
	case info.Size()-p.Offset < p.Size:
		err = fmt.Errorf("%s is shorter than it was: %w", p.Path, io.ErrUnexpectedEOF)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return section{io.NewSectionReader(file, p.Offset, p.Size), file}, nil
}

type section struct {
	*io.SectionReader
	io.Closer
}
