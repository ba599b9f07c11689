package lazy

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// Maker makes files of layers from the registries that images are pulled from.
type Maker struct {
	Hosts docker.RegistryHosts
	// Not are hosts that only this process reaches.
	Not string
}

// Make makes the file of a layer of an image at a path, from the first registry
// that gives the digest of its table of contents.
func (m Maker) Make(ctx context.Context, file, image string, layer, contents digest.Digest) error {
	ref, err := reference.ParseDockerRef(image)
	if err != nil {
		return err
	}
	hosts, err := m.Hosts(reference.Domain(ref))
	if err != nil {
		return err
	}
	problems := []error{errors.New("no registry gives a layer in parts")}
	for _, host := range hosts {
		if host.Host == m.Not {
			continue
		}
		name := reference.Path(ref)
		blob := url.URL{Scheme: host.Scheme, Host: host.Host, Path: path.Join(host.Path, name, "blobs", layer.String())}
		// A mirror is asked as containerd does.
		if host.Host != reference.Domain(ref) {
			blob.RawQuery = url.Values{"ns": {reference.Domain(ref)}}.Encode()
		}
		err := Make(ctx, file, Source{URL: blob.String(), Scope: fmt.Sprintf("repository:%s:pull", name)}, contents)
		if err == nil {
			return nil
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}
