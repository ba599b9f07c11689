// Command web is a server to probe, to balance and to break.
//
//	web [-http :8080] [-tcp :8081] [-udp :8082] [-ask ADDRESS[,ADDRESS...] [-over udp]]
//	    [-admit :8443 -cert FILE -key FILE]
//
// HTTP: / answers with the host's name, the peer's address and the request;
// /healthz with 200 or 503, which POST /healthz?ok=true|false changes; /slow?for=3s
// waits; POST /exit?status=1 ends the process; /env prints the environment.
// TCP and UDP echo; a line "whoami" is answered with the host's name and the
// peer's address. With -ask the process is a client: it sends one
// line (-say, "whoami") over TCP or UDP to each address in turn, prints the
// answers and ends. With -admit, it also is an admission webhook that permits everything.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	httpAddr := flag.String("http", ":8080", "HTTP address, empty for none")
	tcpAddr := flag.String("tcp", ":8081", "TCP address, empty for none")
	udpAddr := flag.String("udp", ":8082", "UDP address, empty for none")
	ask := flag.String("ask", "", "be a client of these addresses, with commas between them")
	over := flag.String("over", "tcp", "network of -ask: tcp or udp")
	admitAddr := flag.String("admit", "", "HTTPS address of an admission webhook, empty for none")
	cert, key := flag.String("cert", "", "certificate of -admit"), flag.String("key", "", "key of -admit")
	say := flag.String("say", "whoami", "line that -ask sends")
	flag.Parse()

	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	s := &server{host: host}
	s.healthy.Store(true)
	if *ask != "" {
		err = askAll(*over, strings.Split(*ask, ","), *say)
	} else {
		admit := func(addr string) error {
			return http.ListenAndServeTLS(addr, *cert, *key, http.HandlerFunc(admitAll))
		}
		err = s.run(part{*httpAddr, s.http}, part{*tcpAddr, s.tcp}, part{*udpAddr, s.udp}, part{*admitAddr, admit})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "web:", err)
		os.Exit(1)
	}
}

type server struct {
	host    string
	healthy atomic.Bool
}

// part serves one protocol, unless its address is empty.
type part struct {
	addr  string
	serve func(string) error
}

// run serves until SIGTERM or the first failure.
func (s *server) run(parts ...part) error {
	failed := make(chan error, len(parts))
	for _, part := range parts {
		if part.addr != "" {
			go func() { failed <- part.serve(part.addr) }()
		}
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case err := <-failed:
		return err
	case <-stop:
		fmt.Println("web: told to stop")
		return nil
	}
}

func (s *server) http(addr string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "host %s\npeer %s\n%s %s\n", s.host, r.RemoteAddr, r.Method, r.URL)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.healthy.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintln(w, s.healthy.Load())
	})
	mux.HandleFunc("POST /healthz", func(w http.ResponseWriter, r *http.Request) {
		ok, err := strconv.ParseBool(r.FormValue("ok"))
		if err != nil {
			http.Error(w, "want ok=true or ok=false", http.StatusBadRequest)
			return
		}
		s.healthy.Store(ok)
		fmt.Fprintln(w, ok)
	})
	mux.HandleFunc("GET /slow", func(w http.ResponseWriter, r *http.Request) {
		wait, err := time.ParseDuration(r.FormValue("for"))
		if err != nil {
			http.Error(w, "want for=DURATION", http.StatusBadRequest)
			return
		}
		select {
		case <-time.After(wait):
			fmt.Fprintln(w, "waited", wait)
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("GET /env", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, strings.Join(os.Environ(), "\n"))
	})
	mux.HandleFunc("POST /exit", func(_ http.ResponseWriter, r *http.Request) {
		status, _ := strconv.Atoi(r.FormValue("status")) // absent means 0
		os.Exit(status)
	})
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Println("web: http on", l.Addr())
	return (&http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}).Serve(l)
}

func (s *server) tcp(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Println("web: tcp on", l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go s.echo(c)
	}
}

func (s *server) echo(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	for {
		line, err := in.ReadString('\n')
		if strings.TrimSpace(line) == "whoami" {
			line = fmt.Sprintf("%s %s\n", s.host, c.RemoteAddr())
		}
		if _, werr := io.WriteString(c, line); err != nil || werr != nil {
			return
		}
	}
}

func (s *server) udp(addr string) error {
	c, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	fmt.Println("web: udp on", c.LocalAddr())
	buf := make([]byte, 64<<10)
	for {
		n, peer, err := c.ReadFrom(buf)
		if err != nil {
			return err
		}
		answer := buf[:n]
		if strings.TrimSpace(string(answer)) == "whoami" {
			answer = fmt.Appendf(nil, "%s %s\n", s.host, peer)
		}
		// A peer that has gone is no reason to stop serving the others.
		if _, err := c.WriteTo(answer, peer); errors.Is(err, net.ErrClosed) {
			return err
		}
	}
}

// admitAll answers a request of the API server to permit a change.
func admitAll(w http.ResponseWriter, r *http.Request) {
	var review struct {
		APIVersion, Kind string
		Request          struct{ UID string }
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": review.APIVersion, "kind": review.Kind,
		"response": map[string]any{"uid": review.Request.UID, "allowed": true},
	})
}

// answerTimeout bounds the wait for an answer: a lost datagram never has one.
const answerTimeout = 5 * time.Second

func askAll(network string, addrs []string, line string) error {
	for _, addr := range addrs {
		if err := askFor(network, addr, line); err != nil {
			return err
		}
	}
	return nil
}

func askFor(network, addr, line string) error {
	c, err := net.DialTimeout(network, addr, answerTimeout)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return err
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	fmt.Print(answer)
	return err
}
