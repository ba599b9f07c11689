// Command registry serves image archives as a real registry does, for tests of
// pulls: over HTTP or HTTPS, to everybody or to one user.
//
//	registry [-listen :5000] [-tls CERTIFICATE] [-user NAME:PASSWORD] REPOSITORY:TAG=ARCHIVE...
//
// An archive is one of "docker save", which holds an image of the repository's
// last word and the tag. With -tls the program makes a certificate authority of
// its own and writes its certificate to that file. It prints a line per
// request.
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
	"os"
	"strings"

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
	flag.Parse()
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	for _, image := range flag.Args() {
		if err := push(store, image); err != nil {
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
	return http.Serve(listener, logged(guarded(store, *user)))
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

func logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, strings.TrimSuffix(r.URL.Path, "/"))
		next.ServeHTTP(w, r)
	})
}
