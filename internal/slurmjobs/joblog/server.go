package joblog

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

// Job is the job that a pod shows.
type Job struct {
	// Name describes the job in messages.
	Name string
	// State is Slurm's state, and Ended reports whether the job has ended.
	State string
	Ended bool
	// Output is the path of the output, or "" while it is unknown.
	Output string
}

// Server serves the output of jobs to API servers.
type Server struct {
	// Certificate is the server's, and Authority has signed the certificates of clients, in
	// PEM. Only a client whose common name is Client is served.
	Certificate tls.Certificate
	Authority   []byte
	Client      string
	// Job returns the job that a container of a pod shows. Its error tells the user why there
	// is none.
	Job func(namespace, pod, container string) (Job, error)
	// Roots lists the folders that may hold outputs, as in File.
	Roots []string
	// Interval is the time between two reads of a file that is followed.
	Interval time.Duration
	Log      *slog.Logger
}

// headerTimeout limits the time until a client has sent its certificate and its request.
const headerTimeout = 10 * time.Second

// maxPending limits the connections of clients that have not sent a certificate and a request.
const maxPending = 100

// pending holds the connections of such clients.
type pending struct {
	mu    sync.Mutex
	conns map[net.Conn]bool
}

// changed notes the state of a connection. It closes new connections while there are too many.
func (p *pending) changed(conn net.Conn, state http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(p.conns, conn)
	case len(p.conns) >= maxPending:
		conn.Close()
	default:
		p.conns[conn] = true
	}
}

// Serve serves the connections of a listener until ctx ends. Then it returns nil.
func (s Server) Serve(ctx context.Context, listener net.Listener) error {
	authority := x509.NewCertPool()
	if !authority.AppendCertsFromPEM(s.Authority) {
		return errors.New("serve outputs of jobs: the authority of clients is no certificate")
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.serveLog)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusNotFound, errors.New("this pod shows a Slurm job: it has a log, but runs no programs"))
	})
	waiting := pending{conns: map[net.Conn]bool{}}
	server := http.Server{
		Handler: mux, ConnState: waiting.changed, ReadHeaderTimeout: headerTimeout, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{s.Certificate},
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority,
			// The authority also signs the certificates of the cluster's other users.
			VerifyConnection: func(state tls.ConnectionState) error {
				if name := state.PeerCertificates[0].Subject.CommonName; name != s.Client {
					return fmt.Errorf("client %q is not the API server", name)
				}
				return nil
			},
		},
	}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.ServeTLS(listener, "", ""); ctx.Err() == nil {
		return fmt.Errorf("serve outputs of jobs: %w", err)
	}
	return nil
}

// query holds the parameters of a request. kubectl logs sets them.
type query struct {
	follow bool
	tail   *int64
	// limit is the largest number of bytes, or -1.
	limit int64
}

// parse parses the parameters that a kubelet accepts. It returns an error for a parameter that the
// output of a job cannot satisfy.
func parse(values url.Values) (query, error) {
	q := query{limit: -1}
	for name := range values {
		text := values.Get(name)
		switch name {
		case "follow":
			q.follow = text != "false"
		case "tailLines", "limitBytes":
			number, err := strconv.ParseInt(text, 10, 64)
			if err != nil || number < 0 {
				return q, fmt.Errorf("%s: %q is no number of 0 or more", name, text)
			}
			if name == "tailLines" {
				q.tail = &number
			} else {
				q.limit = number
			}
		case "previous":
			if text != "false" {
				return q, errors.New("a Slurm job has no output of an earlier container: omit --previous")
			}
		case "timestamps", "sinceSeconds", "sinceTime":
			if text != "false" {
				return q, errors.New("the output of a Slurm job has no timestamps: omit --timestamps, --since and --since-time")
			}
		case "stream":
			if text != "All" && text != "Stdout" {
				return q, errors.New("the standard error of a Slurm job is in its output, or in the file that its script names: omit the stream")
			}
		}
	}
	return q, nil
}

// serveLog answers a request for the log of a container. A request that follows the log of a job
// that has not started waits for it.
func (s Server) serveLog(w http.ResponseWriter, r *http.Request) {
	q, err := parse(r.URL.Query())
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	file := File{Roots: s.Roots, Tail: q.tail}
	out := &limited{out: w, left: q.limit}
	control := http.NewResponseController(w)
	begun := false
	fail := func(err error) {
		if begun || file.Found {
			s.Log.Debug("stop following an output: " + err.Error())
			panic(http.ErrAbortHandler) // the client must not take this for the end of the output
		}
		refuse(w, http.StatusBadRequest, err) // kubectl omits the text of 404
	}
	for {
		job, err := s.Job(r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container"))
		if err != nil {
			fail(err)
			return
		}
		last := job.Ended || !q.follow
		var missing error
		if file.Path = job.Output; file.Path != "" {
			missing, err = file.Copy(r.Context(), out)
		}
		switch {
		case errors.Is(err, errLimit):
			return
		case err != nil:
			fail(fmt.Errorf("read the output of %s: %w", job.Name, err))
			return
		case last && begun:
			return
		case last && !file.Found && missing != nil:
			fail(fmt.Errorf("the output of %s is not there, its state is %s: %w", job.Name, job.State, missing))
			return
		case last && !file.Found:
			fail(fmt.Errorf("%s has no output, its state is %s", job.Name, job.State))
			return
		case last:
			return
		}
		if err := control.Flush(); err != nil {
			return
		}
		begun = true
		select {
		case <-time.After(s.Interval):
		case <-r.Context().Done():
			return
		}
	}
}

// refuse writes an error. kubectl prints its text.
func refuse(w http.ResponseWriter, code int, err error) {
	w.WriteHeader(code)
	_, _ = io.WriteString(w, err.Error())
}

// errLimit reports that a limited writer has no bytes left.
var errLimit = errors.New("the limit of bytes is reached")

// limited writes a number of bytes, or all if left is negative.
type limited struct {
	out  io.Writer
	left int64
}

func (l *limited) Write(text []byte) (int, error) {
	if l.left < 0 {
		return l.out.Write(text)
	}
	part := text[:min(int64(len(text)), l.left)]
	n, err := l.out.Write(part)
	l.left -= int64(n)
	if err == nil && (l.left == 0 || n < len(text)) {
		err = errLimit
	}
	return n, err
}
