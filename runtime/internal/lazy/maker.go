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

	"berth.dev/berth/runtime/internal/budget"
)

// Maker makes files of layers from the registries that images are pulled from.
type Maker struct {
	Hosts docker.RegistryHosts
	// Not is the host of a registry to skip, because only this process can
	// reach it.
	Not string
	// Keep keeps a login for the process that reads the layer, and returns its name.
	Keep func(context.Context, Login) (string, error)
	// Budget bounds the layers.
	Budget budget.Budget
}

// Layer describes a layer to make, as a snapshotter receives it.
type Layer struct {
	// Image is the name of the image, as in the pull.
	Image string
	// Manifest is the digest of the image's manifest; empty if unknown.
	Manifest digest.Digest
	Digest   digest.Digest
	// Contents is the digest of the layer's table of contents.
	Contents digest.Digest
}

// Make makes the file of a layer at a path, from the first registry that has the right table
// of contents. Its error joins the errors of all registries.
func (m Maker) Make(ctx context.Context, file string, l Layer) error {
	p := pullOf(ctx)
	p.askAhead(ctx, m, l)
	if table, ok := p.take(ctx, l.Digest); ok && table.make(file, l.Contents, m.Budget, &p.image) == nil {
		return nil
	}
	size, err := p.sizeOf(ctx, l)
	if err != nil {
		return err
	}
	problems := []error{errors.New("no registry gives a layer in parts")}
	err = m.each(l.Image, func(b blobs) bool {
		source, login, err := m.login(ctx, p, b)
		if err == nil {
			at := source.of(l.Digest)
			at.Size = size
			err = makeFor(ctx, file, at, login, l.Contents, m.Budget, &p.image)
		}
		problems = append(problems, err)
		return err != nil
	})
	if err != nil || problems[len(problems)-1] == nil {
		return err
	}
	return fmt.Errorf("make layer %s of image %s: %w", l.Digest, l.Image, errors.Join(problems...))
}

// blobs is the place of an image's blobs in a registry.
type blobs struct {
	url url.URL
	// scope and login are as in Source.
	scope, login string
}

// of returns the source of a blob, without its size.
func (b blobs) of(d digest.Digest) Source {
	b.url.Path = path.Join(b.url.Path, d.String())
	return Source{URL: b.url.String(), Scope: b.scope, Login: b.login}
}

// each calls f with each registry of an image, until f returns false.
func (m Maker) each(image string, f func(blobs) bool) error {
	ref, err := reference.ParseDockerRef(image)
	if err != nil {
		return err
	}
	hosts, err := m.Hosts(reference.Domain(ref))
	if err != nil {
		return err
	}
	for _, host := range hosts {
		if host.Host == m.Not {
			continue
		}
		name := reference.Path(ref)
		at := url.URL{Scheme: host.Scheme, Host: host.Host, Path: path.Join(host.Path, name, "blobs")}
		// Query a mirror as containerd does.
		if host.Host != reference.Domain(ref) {
			at.RawQuery = url.Values{"ns": {reference.Domain(ref)}}.Encode()
		}
		if !f(blobs{url: at, scope: fmt.Sprintf("repository:%s:pull", name)}) {
			break
		}
	}
	return nil
}

// login hands the login for a registry to the process that will read its layers. It returns
// b with the name of the login, and the login.
func (m Maker) login(ctx context.Context, p *Pull, b blobs) (blobs, Login, error) {
	login, err := p.loginFor(ctx, b.url.Host)
	if err == nil && login != (Login{}) {
		b.login, err = m.Keep(ctx, login)
	}
	return b, login, err
}

// first returns the first registry of an image, and the login for it.
func (m Maker) first(ctx context.Context, p *Pull, image string) (b blobs, login Login, err error) {
	err = m.each(image, func(found blobs) bool {
		b = found
		return false
	})
	if err == nil && b.url.Host == "" {
		err = errors.New("no registry gives a layer in parts")
	}
	if err != nil {
		return b, login, err
	}
	return m.login(ctx, p, b)
}
