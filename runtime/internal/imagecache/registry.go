package imagecache

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/layercache"
)

// Registries configures registries and logins.
type Registries struct {
	// Servers maps registry names to URLs, for registries at another address.
	Servers map[string]string
	Logins  Logins
}

// Pull fetches an image from its registry. The name has the form that users
// type.
func (p *Populator) Pull(ctx context.Context, name string, registries Registries) (layercache.Image, error) {
	ref, err := reference.ParseDockerRef(name)
	if err != nil {
		return layercache.Image{}, fmt.Errorf("parse image name %q: %w", name, err)
	}
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: registries.hosts(ref)})
	resolved, target, err := resolver.Resolve(ctx, ref.String())
	if err != nil {
		return layercache.Image{}, fmt.Errorf("pull %s: %w", ref, err)
	}
	fetcher, err := resolver.Fetcher(ctx, resolved)
	if err != nil {
		return layercache.Image{}, fmt.Errorf("pull %s: %w", ref, err)
	}
	image, err := p.put(ctx, ref.String(), target, connection{fetcher})
	if err != nil {
		return image, fmt.Errorf("pull %s: %w", ref, err)
	}
	return image, nil
}

// connection fetches blobs from a registry. It wraps errors of the network in errBroken,
// because a broken connection does not mean a bad blob.
type connection struct{ remotes.Fetcher }

func (l connection) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	content, err := l.Fetcher.Fetch(ctx, desc)
	if err != nil {
		return nil, err
	}
	if seeker, ok := content.(io.Seeker); ok {
		return struct {
			fromConnection
			io.Seeker
		}{fromConnection{content}, seeker}, nil
	}
	return fromConnection{content}, nil
}

var errBroken = errors.New("the connection to the registry broke; trying again may help")

type fromConnection struct{ io.ReadCloser }

func (f fromConnection) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	var ofNet net.Error
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &ofNet) {
		err = fmt.Errorf("%w: %w", errBroken, err)
	}
	return n, err
}

// hosts returns the registry hosts for an image.
func (r Registries) hosts(ref reference.Named) docker.RegistryHosts {
	transport := docker.DefaultHTTPTransport(nil)
	client := &http.Client{Transport: transport}
	authorizer := docker.NewDockerAuthorizer(docker.WithAuthClient(client), docker.WithAuthCreds(func(host string) (string, string, error) {
		user, secret := r.Logins.find(host, ref)
		return user, secret, nil
	}))
	byName := docker.ConfigureDefaultRegistries(docker.WithClient(client), docker.WithAuthorizer(authorizer))
	return func(registry string) ([]docker.RegistryHost, error) {
		hosts, err := byName(registry)
		server, elsewhere := r.Servers[registry]
		if err != nil || !elsewhere {
			return hosts, err
		}
		parsed, err := url.Parse(server)
		if err != nil {
			return nil, fmt.Errorf("parse address of registry %s: %w", registry, err)
		}
		hosts[0].Scheme, hosts[0].Host = parsed.Scheme, parsed.Host
		// In registries with projects, the API root is not at the start of the
		// path.
		hosts[0].Path = strings.TrimSuffix(parsed.Path, "/")
		if !strings.HasPrefix(hosts[0].Path+"/", "/v2/") {
			hosts[0].Path += "/v2"
		}
		return hosts, nil
	}
}

// Logins maps registries to logins. The names are the names that docker login
// writes: some have a scheme or the beginning of a path.
type Logins map[string]login

type login struct {
	user, secret string
}

// ParseLogins reads a Docker configuration.
func ParseLogins(text []byte) (Logins, error) {
	var config struct {
		Auths map[string]struct{ Auth, Username, Password, IdentityToken string }
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("parse passwords of registries: %w", err)
	}
	logins := Logins{}
	for name, entry := range config.Auths {
		user, secret := entry.Username, entry.Password
		if entry.Auth != "" {
			decoded, err := base64.StdEncoding.DecodeString(entry.Auth)
			if err != nil {
				return nil, fmt.Errorf("parse password of registry %s: it is not base64", name)
			}
			user, secret, _ = strings.Cut(strings.TrimRight(string(decoded), "\x00"), ":")
		}
		if entry.IdentityToken != "" {
			user, secret = "", entry.IdentityToken
		}
		name = strings.TrimPrefix(strings.TrimPrefix(name, "https://"), "http://")
		name = strings.TrimSuffix(name, "/")
		// Docker's name for its own registry.
		for _, version := range []string{"/v1", "/v2"} {
			name = strings.TrimSuffix(name, version)
		}
		logins[name] = login{user, secret}
	}
	return logins, nil
}

// find returns the login for a host and an image; empty strings if there is none. The most
// specific entry of the host wins. Without one, the registry in the image's name counts.
func (l Logins) find(host string, ref reference.Named) (user, secret string) {
	for _, name := range append([]string{host}, aliases(reference.Domain(ref))...) {
		for key := name + "/" + reference.Path(ref); key != ""; {
			if found, ok := l[key]; ok {
				return found.user, found.secret
			}
			cut := strings.LastIndex(key, "/")
			key = key[:max(cut, 0)]
		}
	}
	return "", ""
}

// aliases returns the names that a registry may have in a Docker configuration.
func aliases(registry string) []string {
	if registry == "docker.io" {
		return []string{registry, "index.docker.io", "registry-1.docker.io"}
	}
	return []string{registry}
}
