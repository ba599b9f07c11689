// Command registry serves image archives as a real registry does, for tests of
// pulls: over HTTP or HTTPS, to everybody or to one user.
//
//	registry [-listen :5000] [-tls CERTIFICATE] [-user NAME:PASSWORD] [-layers N -bytes N] [-arch ARCH] [-rate N] REPOSITORY:TAG=ARCHIVE...
//
// An archive is one of "docker save", which holds an image named by the
// repository's last word and the tag. -layers adds layers of random bytes to each
// image, and -arch sets the architecture of each. With -tls the program makes a
// certificate authority and writes its certificate to that file. It prints a line
// for each request, and a line with the number of bytes sent.
//
// A repository lies/KIND/NAME lies about its image; lies.go has the kinds.
package main

import (
	"crypto/subtle"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "registry:", err)
		os.Exit(1)
	}
}

func run() error {
	listen := flag.String("listen", ":5000", "address")
	certificate := flag.String("tls", "", "serve HTTPS, and write the authority's certificate to this file")
	user := flag.String("user", "", "NAME:PASSWORD that a client has to know")
	layers := flag.Int("layers", 0, "add so many layers to each image")
	size := flag.Int64("bytes", 1_000_000, "size of each of them")
	arch := flag.String("arch", "", "architecture that each image says it is for")
	rate := flag.Int64("rate", 0, "send so many bytes per second to all clients together; 0 for no limit")
	flag.Parse()
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	for _, image := range flag.Args() {
		if err := push(store, image, *layers, *size, *arch); err != nil {
			return fmt.Errorf("load %s: %w", image, err)
		}
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	if *certificate != "" {
		pair, err := serverCertificate(*certificate)
		if err != nil {
			return fmt.Errorf("make certificate: %w", err)
		}
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{pair}})
	}
	fmt.Println("registry on", listener.Addr())
	return http.Serve(listener, logged(guarded(ranged(lying(store)), *user), *rate))
}

func guarded(next http.Handler, user string) http.Handler {
	if user == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, password, _ := r.BasicAuth()
		if subtle.ConstantTimeCompare([]byte(name+":"+password), []byte(user)) != 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func logged(next http.Handler, rate int64) http.Handler {
	line := &slow{rate: rate}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimSuffix(r.URL.Path, "/")
		client, _, _ := net.SplitHostPort(r.RemoteAddr) // net/http has written it
		fmt.Println(r.Method, path, "by", client)
		counted := &counted{ResponseWriter: w, slow: line}
		next.ServeHTTP(counted, r)
		fmt.Println("sent", counted.bytes, path, "to", client)
	})
}

// slow is the way to all clients.
type slow struct {
	mu   sync.Mutex
	rate int64
}

func (s *slow) take(bytes int) {
	if s.rate > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		time.Sleep(time.Duration(bytes) * time.Second / time.Duration(s.rate))
	}
}

type counted struct {
	http.ResponseWriter
	slow  *slow
	bytes int
}

func (c *counted) Write(p []byte) (written int, _ error) {
	for part := range slices.Chunk(p, 32<<10) { // a blob may come as a whole
		c.slow.take(len(part))
		n, err := c.ResponseWriter.Write(part)
		c.bytes += n
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// ranged adds the end to ranges that have none, which the registry below does not
// understand.
func ranged(store http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if start := r.Header.Get("Range"); strings.HasSuffix(start, "-") {
			answer := httptest.NewRecorder()
			store.ServeHTTP(answer, httptest.NewRequest(http.MethodHead, r.URL.Path, nil))
			if size, err := strconv.ParseInt(answer.Header().Get("Content-Length"), 10, 64); err == nil {
				r.Header.Set("Range", start+strconv.FormatInt(size-1, 10))
			}
		}
		store.ServeHTTP(w, r)
	})
}
