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
	// Keep keeps a login for whoever reads the layer, and returns its name there.
	Keep func(context.Context, Login) (string, error)
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
		source := Source{URL: blob.String(), Scope: fmt.Sprintf("repository:%s:pull", name)}
		login, err := loginFor(ctx, host.Host)
		if err == nil && login != (Login{}) {
			source.Login, err = m.Keep(ctx, login)
		}
		if err == nil {
			err = Make(ctx, file, source, login, contents)
		}
		if err == nil {
			return nil
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}
