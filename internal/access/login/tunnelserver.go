package login

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/access/loopback"
	"berth.dev/berth/internal/access/tunnel"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/base/pki"
	"berth.dev/berth/internal/base/programs"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/job/slurm"
)

// TunnelServerArg is the argument that makes the program the process that keeps a
// tunnel. Then main calls TunnelServer.
const TunnelServerArg = "tunnel-server"

// The replies to the command that started the process. Any other reply is an error.
const (
	saidListening = "listening"
	saidTaken     = "taken"
)

const (
	// questionLimit limits how long a command may take to send its request.
	questionLimit = 10 * time.Second
	// jobsAge is the maximum age of the list of the user's jobs, so that Slurm's
	// controller is queried at most twice a minute.
	jobsAge = 30 * time.Second
	// freshAge is the maximum age of the list for a command that requests the
	// current jobs.
	freshAge = time.Second
	// withoutAge is the time before a job without a cluster is tried again, because
	// each try takes a step.
	withoutAge = 5 * time.Minute
	// partingLimit bounds the time to notify commands of the end.
	partingLimit = 2 * time.Second
)

// tunnelServerConfig configures the tunnel server.
type tunnelServerConfig struct {
	Target  Target
	Program string
	Idle    time.Duration
	// Nodes lists the nodes to try first.
	Nodes []string
}

// tunnelServer keeps one tunnel, for all commands of this user on this host.
type tunnelServer struct {
	config tunnelServerConfig
	place  *Place
	dir    *rundir.Dir

	// ready is closed once the tunnel is open. over is closed when the tunnel has
	// ended or could not be opened; problem then holds the reason.
	ready, over chan struct{}
	problem     *Problem
	finish      func(*Problem)

	tunnel   *tunnel.Tunnel
	step     *step
	listener *loopback.Listener
	key      *os.File
	reply    reply

	mu sync.Mutex
	// users counts connections and commands that use the tunnel now.
	users int
	idle  *time.Timer
	// commands counts commands that have sent a request.
	commands sync.WaitGroup
	// leaving counts goroutines that still end steps which did not answer.
	leaving sync.WaitGroup

	// listing guards the fields below, also while Slurm is queried.
	listing sync.Mutex
	jobs    []slurm.Queued
	// asked is the time of the last query of Slurm. without maps jobs without a cluster
	// to the time when a command last found none.
	asked   time.Time
	without map[string]time.Time
}

// TunnelServer runs the process that keeps a tunnel, and returns its exit status.
func TunnelServer() int {
	runtime.LockOSThread() // srun ends with the thread that started it
	say := func(text string) {
		fmt.Fprintln(os.Stdout, text)
		os.Stdout.Close()
	}
	k := &tunnelServer{ready: make(chan struct{}), over: make(chan struct{}), without: map[string]time.Time{}}
	var once sync.Once
	k.finish = func(why *Problem) { once.Do(func() { k.conclude(why) }) }
	listener, err := k.claim()
	switch {
	case errors.Is(err, fs.ErrExist):
		say(saidTaken)
		return 0
	case err != nil:
		say(err.Error())
		return 1
	}
	say(saidListening)
	signal.Ignore(syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	go k.listen(ctx, listener)
	if err := k.open(ctx); err != nil {
		k.finish(asProblem(err))
	} else {
		k.beginIdle()
		close(k.ready)
		go k.watch(ctx)
	}
	<-k.over
	k.takeDown(listener)
	return 0
}

// conclude records why the tunnel ends and wakes everything that waits for the end. It is
// called once, by finish.
func (k *tunnelServer) conclude(why *Problem) {
	k.problem = why
	close(k.over)
}

// claim reads the configuration, creates the tunnel's directory and listens for commands
// in it. If another process has the directory, the error wraps fs.ErrExist.
func (k *tunnelServer) claim() (*net.UnixListener, error) {
	if err := json.NewDecoder(os.Stdin).Decode(&k.config); err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	os.Stdin.Close()
	var err error
	if k.place, err = NewPlace(os.Getenv); err != nil {
		return nil, err
	}
	if k.dir, err = rundir.Claim(k.place.base, dirName(k.config.Target)); err != nil {
		return nil, err
	}
	syscall.Umask(0o077)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: k.file(socketFile)})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for commands: %w", err), k.dir.Remove())
	}
	if err := os.Chmod(k.file(socketFile), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("close the socket to others: %w", err), k.dir.Remove())
	}
	listener.SetUnlinkOnClose(false) // the directory is renamed before it is removed
	return listener, nil
}

func (k *tunnelServer) file(name string) string { return filepath.Join(k.dir.Path, name) }

// open opens the tunnel and a listener on this host's loopback.
func (k *tunnelServer) open(ctx context.Context) (err error) {
	if k.tunnel, k.step, err = k.enter(ctx); err != nil {
		return err
	}
	if k.listener, err = loopback.Listen(netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
		return err
	}
	credentials := k.tunnel.Credentials
	if k.key, err = linux.MemoryFile("berth-key", credentials.Key); err != nil {
		return err
	}
	// As on the node, the key is in no file: its path refers to this process's memory.
	kubeconfig := pki.KubeconfigWithKeyFile("berth", fmt.Sprintf("https://127.0.0.1:%d", k.listener.Port()),
		credentials.Authority, credentials.Cert, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), k.key.Fd()))
	if err := os.WriteFile(k.file(kubeconfigFile), kubeconfig, 0o600); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	if err := programs.LinkTools(k.file(binDir)); err != nil {
		return err
	}
	answer := k.tunnel.Answer
	k.reply = reply{
		Kubeconfig: k.file(kubeconfigFile), Cache: k.file(cacheDir), Bin: k.file(binDir),
		Node: answer.Node, Cluster: answer.Cluster, Version: answer.Version,
	}
	go k.serveLoopback()
	return nil
}

// serveLoopback forwards connections of this user's programs to the API server.
func (k *tunnelServer) serveLoopback() {
	for {
		conn, err := k.listener.Accept()
		if err != nil {
			return // the listener was closed
		}
		go func() {
			defer k.use()()
			far, err := k.tunnel.Dial()
			if err != nil {
				conn.Close()
				return
			}
			tunnel.Join(conn, far)
		}()
	}
}

// beginIdle ends the tunnel once it has been unused for a while.
func (k *tunnelServer) beginIdle() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.idle = time.AfterFunc(k.config.Idle, func() { k.finish(k.unused()) })
	if k.users > 0 {
		k.idle.Stop()
	}
}

// use marks the tunnel as used, until the returned function is called.
func (k *tunnelServer) use() func() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.users++
	if k.idle != nil {
		k.idle.Stop()
	}
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.users--; k.users == 0 && k.idle != nil {
			k.idle.Reset(k.config.Idle)
		}
	}
}

func (k *tunnelServer) unused() *Problem {
	return problem(codeUnavailable, "the tunnel into job %s was closed: nobody has used it for %s", k.config.Target, k.config.Idle)
}

// listen accepts connections of commands until the listener is closed.
func (k *tunnelServer) listen(ctx context.Context, listener *net.UnixListener) {
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			return // the listener was closed
		}
		k.commands.Go(func() {
			defer conn.Close()
			k.serve(ctx, conn)
		})
	}
}

func (k *tunnelServer) serve(ctx context.Context, conn net.Conn) {
	var q question
	_ = conn.SetReadDeadline(time.Now().Add(questionLimit))
	questions := json.NewDecoder(conn)
	if questions.Decode(&q) != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	say := func(r reply) { _ = json.NewEncoder(conn).Encode(r) } // ignore errors: the command may have exited
	if q.Do == doJobs {
		say(k.listJobs(ctx, q.Fresh, q.Without))
		return
	}
	defer k.use()()
	select {
	case <-k.ready:
	case <-k.over:
	}
	if k.spent() {
		return
	}
	if k.isOver() {
		say(reply{Problem: k.problem})
		return
	}
	if err := k.check(ctx); err != nil {
		if !k.spent() {
			say(reply{Problem: asProblem(err)})
		}
		return
	}
	say(k.reply)
	checks := make(chan string)
	go func() {
		defer close(checks)
		for questions.Decode(&q) == nil {
			checks <- q.Do
		}
	}()
	for {
		var why *Problem
		select {
		case how, still := <-checks:
			if !still {
				return // the command has exited
			}
			if k.tunnel.Ended() {
				<-k.over
				why = k.problem
				break
			}
			if how == doCheckJob {
				why = k.jobProblem(ctx)
			}
			if why == nil {
				say(reply{})
				continue
			}
		case <-k.over:
			why = k.problem
		}
		say(reply{Problem: why})
		go func() {
			for range checks { // a command may send a check at this moment
			}
		}()
		return
	}
}

// spent reports whether the tunnel was open and has ended, and no other node of the
// cluster is known. A new command then gets no answer and opens a new tunnel.
// Otherwise the reply names the other nodes.
func (k *tunnelServer) spent() bool {
	select {
	case <-k.ready:
	default:
		return false
	}
	return (k.tunnel.Ended() || k.isOver()) && len(k.elsewhere()) == 0
}

func (k *tunnelServer) isOver() bool {
	select {
	case <-k.over:
		return true
	default:
		return false
	}
}

// listJobs returns the user's jobs. The list is at most half a minute old, or a
// second if fresh is set.
func (k *tunnelServer) listJobs(ctx context.Context, fresh bool, without []string) reply {
	age := jobsAge
	if fresh {
		age = freshAge
	}
	k.listing.Lock()
	defer k.listing.Unlock()
	for _, job := range without {
		k.without[job] = time.Now()
	}
	if time.Since(k.asked) > age {
		jobs, err := slurm.Queue(ctx, os.Getuid(), k.place.ask)
		if err != nil {
			return reply{Problem: asProblem(err)}
		}
		k.jobs, k.asked = jobs, time.Now()
	}
	answer := reply{Jobs: k.jobs}
	for job, seen := range k.without {
		if time.Since(seen) > withoutAge {
			delete(k.without, job)
			continue
		}
		answer.Without = append(answer.Without, job)
	}
	slices.Sort(answer.Without)
	return answer
}

// takeDown removes the tunnel's files, listeners and step.
func (k *tunnelServer) takeDown(listener *net.UnixListener) {
	// First remove the directory, so that the next command opens a new tunnel.
	_ = k.dir.Remove()
	listener.Close()
	finished := make(chan struct{})
	go func() {
		k.commands.Wait()
		close(finished)
	}()
	select {
	case <-finished:
	case <-time.After(partingLimit):
	}
	if k.listener != nil {
		k.listener.Close()
	}
	if k.tunnel != nil {
		k.tunnel.Close()
		k.step.end()
	}
	k.leaving.Wait()
}
