package control

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/component-base/version"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/handler3"
)

// lazyOpenAPI serves the OpenAPI documents of the built-in APIs. Upstream builds
// all documents before it serves the first request, which takes half of the
// whole start, and most clusters of a job never read one. Here upstream's code
// builds a document at its first request.
//
// Only the index of version 3 must exist from the start: the aggregator reads it
// once, and a failure would make it back off for a minute. Upstream's index
// holds a content hash of each document, so it needs all documents. But a hash
// only has to change with the content, and the binary's version determines the
// content.
type lazyOpenAPI struct {
	container *restful.Container
	v2        *common.Config
	v3        *common.OpenAPIV3Config

	v2Once sync.Once
	v2Mux  *mux.PathRecorderMux

	hash  string
	index []byte
	// groups holds an entry for each group version, by path such as
	// "apis/apps/v1"; the map itself never changes.
	groups map[string]*lazyGroup
}

// lazyGroup is the document of one group version.
type lazyGroup struct {
	service *restful.WebService
	once    sync.Once
	mux     *mux.PathRecorderMux
}

// installLazyOpenAPI adds the handlers of a lazyOpenAPI to a server that was created
// without OpenAPI. Call it after all APIs were installed, and before the server runs.
func installLazyOpenAPI(s *server.GenericAPIServer, v2 *common.Config, v3 *common.OpenAPIV3Config) error {
	l := &lazyOpenAPI{
		container: s.Handler.GoRestfulContainer,
		v2:        v2,
		v3:        v3,
		groups:    map[string]*lazyGroup{},
	}
	info := version.Get()
	sum := sha256.Sum256([]byte(info.GitVersion + info.GitCommit + info.BuildDate))
	l.hash = strings.ToUpper(hex.EncodeToString(sum[:]))

	index := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	for _, service := range l.container.RegisteredWebServices() {
		path := strings.TrimPrefix(service.RootPath(), "/")
		l.groups[path] = &lazyGroup{service: service}
		index.Paths[path] = handler3.OpenAPIV3DiscoveryGroupVersion{
			ServerRelativeURL: "/openapi/v3/" + path + "?hash=" + l.hash,
		}
	}
	var err error
	if l.index, err = json.Marshal(index); err != nil {
		return err
	}
	s.Handler.NonGoRestfulMux.HandleFunc("/openapi/v2", l.serveV2)
	s.Handler.NonGoRestfulMux.HandleFunc("/openapi/v3", l.serveV3Index)
	s.Handler.NonGoRestfulMux.HandlePrefix("/openapi/v3/", http.HandlerFunc(l.serveV3Group))
	return nil
}

func (l *lazyOpenAPI) serveV2(w http.ResponseWriter, r *http.Request) {
	l.v2Once.Do(func() {
		l.v2Mux = mux.NewPathRecorderMux("openapi-v2")
		routes.OpenAPI{Config: l.v2}.InstallV2(l.container, l.v2Mux)
	})
	l.v2Mux.ServeHTTP(w, r)
}

func (l *lazyOpenAPI) serveV3Index(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(l.index)
}

func (l *lazyOpenAPI) serveV3Group(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/openapi/v3/")
	group, known := l.groups[path]
	if !known {
		http.NotFound(w, r)
		return
	}
	if hash := r.URL.Query().Get("hash"); hash != "" {
		if hash != l.hash {
			// A document of another version: send the client to ours, as
			// upstream does.
			ours := url.URL{Path: r.URL.Path, RawQuery: "hash=" + l.hash}
			http.Redirect(w, r, ours.String(), http.StatusMovedPermanently)
			return
		}
		// The handler behind would compare the hash with its own.
		r = r.Clone(r.Context())
		r.URL.RawQuery = ""
		w.Header().Set("Cache-Control", "public, immutable")
	}
	group.once.Do(func() { group.mux = l.buildV3(group.service) })
	group.mux.ServeHTTP(w, r)
}

// buildV3 makes upstream build the document of one group version, by showing
// it a container with nothing else in it.
func (l *lazyOpenAPI) buildV3(service *restful.WebService) *mux.PathRecorderMux {
	alone := restful.NewContainer()
	alone.Add(service)
	served := mux.NewPathRecorderMux("openapi-v3" + service.RootPath())
	routes.OpenAPI{V3Config: l.v3}.InstallV3(alone, served)
	return served
}
