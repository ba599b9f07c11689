// Package nameserver runs CoreDNS with the names of pods. The names themselves do not belong
// here, nor does CoreDNS' plugin, which is in programs/coredns/site.
package nameserver

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"text/template"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/site/nametable"
	"berth.dev/berth/internal/site/siteconf"
)

// Server runs CoreDNS while there are pods here. CoreDNS ends when its life file is
// removed, so a new berthd need not find the process that the previous one started.
//
// CoreDNS notices the removal a moment later. Until then it receives part of the queries
// beside its successor. So all of them read the same table at each query. With separate
// tables, a job that begins as another ends would sometimes not find its own names.
type Server struct {
	config  siteconf.DNS
	dir     string
	address netip.Addr
	log     *slog.Logger
	again   func()

	mu sync.Mutex
	// life is the life file of the CoreDNS started here, or empty.
	life string
	// last is the text of the current table.
	last string
}

// New returns a name server that does not run yet. It listens on port 53 of address, and keeps
// its files in dir, which holds nothing else. again requests another Apply.
func New(config siteconf.DNS, dir string, address netip.Addr, log *slog.Logger, again func()) *Server {
	return &Server{config: config, dir: dir, address: address, log: log, again: again}
}

// nobody is the user of CoreDNS, which needs only its port and one file.
const nobody = 65534

const (
	// startLimit bounds the time until CoreDNS listens.
	startLimit = 5 * time.Second
	// retry is the pause before CoreDNS is started again.
	retry = 500 * time.Millisecond
)

var corefile = template.Must(template.New("Corefile").Parse(`.:53 {
	bind {{.Address}}
	errors
	names {{.Table}} {{.Life}}
{{- if .Forward}}
	cache 30
	forward . {{.Forward}}
{{- end}}
}
`))

// Apply passes the names to CoreDNS, and starts it if necessary. A nil table ends CoreDNS.
func (n *Server) Apply(table *nametable.Table) error {
	if n.config.Program == "" {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if table == nil {
		n.life = ""
		return n.clean()
	}
	text, err := json.Marshal(table)
	if err != nil {
		return fmt.Errorf("write names of pods: %w", err)
	}
	if n.life == "" {
		return n.start(text)
	}
	if string(text) == n.last {
		return nil
	}
	return n.write(text)
}

func (n *Server) table() string { return filepath.Join(n.dir, "table") }

// write replaces the table of all name servers on this node.
func (n *Server) write(text []byte) error {
	temporary := filepath.Join(filepath.Dir(n.dir), "new-names")
	err := os.WriteFile(temporary, text, 0o640)
	if err == nil {
		err = os.Chown(temporary, 0, nobody)
	}
	if err == nil {
		// Rename, so that a full disk never leaves half a table.
		err = os.Rename(temporary, n.table())
	}
	if err != nil {
		return fmt.Errorf("write names of pods: %w", err)
	}
	n.last = string(text)
	return nil
}

// start writes the table and starts CoreDNS. It then ends the CoreDNS of the previous berthd.
func (n *Server) start(text []byte) error {
	fail := func(err error) error { return fmt.Errorf("start the name server %s: %w", n.config.Program, err) }
	if err := errors.Join(os.MkdirAll(n.dir, 0o750), os.Chown(n.dir, 0, nobody)); err != nil {
		return fail(err)
	}
	if err := n.write(text); err != nil {
		return fail(err)
	}
	life, err := os.CreateTemp(n.dir, "names-")
	if err != nil {
		return fail(err)
	}
	life.Close()
	if err := n.launch(life.Name()); err != nil {
		return fail(errors.Join(err, os.Remove(life.Name())))
	}
	n.life = life.Name()
	// End the CoreDNS of the previous berthd, which answered until now.
	return n.clean()
}

// launch returns when CoreDNS listens.
func (n *Server) launch(life string) error {
	var text strings.Builder
	if err := corefile.Execute(&text, map[string]string{"Address": n.address.String(), "Table": n.table(), "Life": life, "Forward": strings.Join(n.config.Forward, " ")}); err != nil {
		return err
	}
	ready, ours, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	command := exec.Command(n.config.Program, "-conf", "stdin", "-quiet")
	command.Stdin = strings.NewReader(text.String())
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	command.ExtraFiles = []*os.File{ours}
	command.Dir = "/"
	command.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Credential: &syscall.Credential{Uid: nobody, Gid: nobody},
		AmbientCaps: []uintptr{unix.CAP_NET_BIND_SERVICE},
	}
	if err := errors.Join(command.Start(), ours.Close()); err != nil {
		return fmt.Errorf("%w: correct 'dns.program' in the configuration", err)
	}
	ended := make(chan error, 1)
	go func() {
		err := command.Wait()
		ended <- err
		n.ended(life, err)
	}()
	if err := ready.SetReadDeadline(time.Now().Add(startLimit)); err != nil {
		return errors.Join(err, command.Process.Kill())
	}
	if _, err := bufio.NewReader(ready).ReadString('\n'); err != nil {
		return errors.Join(err, command.Process.Kill(), <-ended, errors.New("its own words are in berthd's log"))
	}
	return nil
}

// ended starts CoreDNS again, unless its end was intended.
func (n *Server) ended(life string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life != life {
		return
	}
	n.log.Error("the name server has ended", "error", err)
	n.life = ""
	time.AfterFunc(retry, n.again)
}

// clean ends all name servers except the current one.
func (n *Server) clean() error {
	files, err := filepath.Glob(filepath.Join(n.dir, "names-*"))
	if err != nil {
		return err
	}
	if n.life == "" {
		files = append(files, n.table())
	}
	for _, file := range files {
		if file == n.life {
			continue
		}
		if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("end a name server: %w", err)
		}
	}
	return nil
}
