package login

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"berth.dev/berth/internal/base/pki"
	"berth.dev/berth/internal/base/rundir"
)

// API sends small requests to an API server, without a Kubernetes client.
type API struct {
	http   *http.Client
	server string
}

// API returns the API of the session's cluster. The caller closes it.
func (s *Session) API() (*API, error) {
	return openAPI(s.Kubeconfig)
}

// LocalAPI returns the API of a cluster that this process reaches without a tunnel.
// That is the cluster that KUBECONFIG names, if this process runs beside it, or a
// cluster that the user runs on this machine outside Slurm. Without such a cluster,
// LocalAPI returns nil.
func LocalAPI(getenv func(string) string) (*API, error) {
	var found []string
	beside := getenv("KUBECONFIG")
	for _, place := range rundir.MemoryPlaces(getenv) {
		for _, directory := range rundir.Live(place) {
			path := filepath.Join(directory, rundir.KubeconfigFile)
			name := filepath.Base(directory)
			if _, err := os.Stat(path); err != nil || !strings.HasSuffix(name, rundir.PrivateSuffix) {
				continue
			}
			if path == beside {
				return openAPI(path)
			}
			if strings.HasPrefix(name, "local-") {
				found = append(found, path)
			}
		}
	}
	switch len(found) {
	case 0:
		return nil, nil
	case 1:
		return openAPI(found[0])
	}
	return nil, problem(codeUsage, "%d clusters of yours are running on this machine: set KUBECONFIG to one of %s", len(found), strings.Join(found, ", "))
}

// openAPI returns the API of the server in a kubeconfig.
func openAPI(kubeconfig string) (*API, error) {
	content, err := os.ReadFile(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the cluster's kubeconfig: %w", err)
	}
	config, err := pki.ReadKubeconfig(content)
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(config.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read the key in %s: %w", kubeconfig, err)
	}
	pair, err := tls.X509KeyPair(config.Cert, key)
	if err != nil {
		return nil, fmt.Errorf("read the certificate in %s: %w", kubeconfig, err)
	}
	authority := x509.NewCertPool()
	if !authority.AppendCertsFromPEM(config.Authority) {
		return nil, fmt.Errorf("read the authority in %s: %w", kubeconfig, errors.New("no certificate in it"))
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: authority, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12,
	}}
	return &API{http: &http.Client{Transport: transport}, server: config.Server}, nil
}

// Close closes the idle connections.
func (a *API) Close() { a.http.CloseIdleConnections() }

// Get reads an object or a list. For a path without a query, the API server answers
// from its cache, which is sufficient and does not load its store.
func (a *API) Get(ctx context.Context, path string, into any) error {
	if !strings.Contains(path, "?") {
		path += "?resourceVersion=0"
	}
	body, err := a.open(ctx, path)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("read the answer of the API server: %w", err)
	}
	return nil
}

// maxText bounds the size of a text, in bytes.
const maxText = 16 << 20

// Text reads a response that is not an object.
func (a *API) Text(ctx context.Context, path string) (string, error) {
	body, err := a.open(ctx, path)
	if err != nil {
		return "", err
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, maxText))
	if err != nil {
		return "", fmt.Errorf("read the answer of the API server: %w", err)
	}
	return string(text), nil
}

func (a *API) open(ctx context.Context, path string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.server+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := a.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask the API server: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, fmt.Errorf("ask the API server for %s: %s", path, response.Status)
	}
	return response.Body, nil
}
