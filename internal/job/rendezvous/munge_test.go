package rendezvous

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/internal/testutil"
)

// nobody is the other user. If root runs the tests, the daemon runs as nobody.
const nobody = 65534

// daemon starts munged as an ordinary user, with a separate socket and key, and
// returns its socket.
func daemon(t *testing.T, key []byte) string {
	t.Helper()
	testutil.Require(t, testutil.Munge)
	// Not t.TempDir: the daemon requires a path that nobody else can write to, and
	// other users must be able to reach its socket.
	dir, err := os.MkdirTemp("/tmp", "berth-munge-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	keyFile, socket := filepath.Join(dir, "key"), filepath.Join(dir, "socket")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(keyFile, key, 0o600)); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("munged", "--foreground", "--key-file="+keyFile, "--socket="+socket,
		"--pid-file="+filepath.Join(dir, "pid"), "--log-file="+filepath.Join(dir, "log"),
		"--seed-file="+filepath.Join(dir, "seed"), "--group-update-time=-1", "--num-threads=2")
	command.Dir, command.Stderr = dir, t.Output()
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 {
		command.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		for _, path := range []string{dir, keyFile} {
			if err := os.Chown(path, nobody, nobody); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		command.Process.Kill()
		command.Wait()
	})
	eventually(t, "munged answers", func() bool {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return socket
}

func randomKey() []byte {
	key := make([]byte, 64)
	rand.Read(key)
	return key
}

func mungeAt(t *testing.T, socket string) *Munge {
	t.Helper()
	prover, err := NewMunge(socket)
	if err != nil {
		t.Fatal(err)
	}
	return prover
}

func someClaim() Claim {
	return Claim{Protocol: protocol, Role: RoleWorker, Step: Step{Cluster: "c", Job: "12", Step: 3}, Node: "n2", Binding: []byte("binding")}
}

func TestMungeIdentifiesUser(t *testing.T) {
	socket := daemon(t, randomKey())
	prover := mungeAt(t, socket)
	claim := someClaim()
	credential, err := prover.Prove(t.Context(), claim)
	if err != nil {
		t.Fatal(err)
	}
	got, err := prover.Verify(t.Context(), credential)
	if err != nil || got.check(claim) != nil || got.Node != "n2" {
		t.Fatalf("read %+v (%v), want %+v", got, err, claim)
	}
	_, err = prover.Verify(t.Context(), credential)
	wantWords(t, err, "used on this node before")
	forged := append([]byte(nil), credential...)
	forged[len(forged)/2] ^= 1
	_, err = prover.Verify(t.Context(), forged)
	wantWords(t, err, "read a credential")
	_, err = prover.Verify(t.Context(), []byte("no credential"))
	wantWords(t, err, "read a credential", "unmunge")
	_, err = mungeAt(t, daemon(t, randomKey())).Verify(t.Context(), mustProve(t, prover))
	wantWords(t, err, "different munge keys")
	_, err = mungeAt(t, socket+"-away").Prove(t.Context(), claim)
	wantWords(t, err, "make a credential", "munged")
}

// A process that has the pipe of munge's output keeps it after munge's end. On a busy
// node, children that this process forks at the same time do so.
func TestMungeWhileOutputIsOpen(t *testing.T) {
	folder := t.TempDir() // the process ends when the test removes it
	programs(t, map[string]string{"munge": "while [ -d " + folder + " ]; do sleep 0.1; done &\necho MUNGE:credential:", "unmunge": ""})
	if credential := mustProve(t, mungeAt(t, "")); string(credential) != "MUNGE:credential:" {
		t.Errorf("got %q", credential)
	}
}

// If a connection ends while munge runs, the error names munge, too.
func TestMungeDoesNotAnswer(t *testing.T) {
	started := filepath.Join(t.TempDir(), "started")
	programs(t, map[string]string{"munge": "touch " + started + "\nexec sleep 1000", "unmunge": ""})
	prover := mungeAt(t, "")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(started); err == nil {
				cancel(errCrowded)
			}
			time.Sleep(time.Millisecond)
		}
	}()
	_, err := prover.Prove(ctx, someClaim())
	wantWords(t, because(ctx, err), "munge: no answer yet: "+errCrowded.Error())
	prover.limit = time.Millisecond
	_, err = prover.Prove(t.Context(), someClaim())
	wantWords(t, err, "no answer within 1ms", "systemctl status munge")
}

// programs puts scripts into a folder in front of PATH.
func programs(t *testing.T, scripts map[string]string) {
	t.Helper()
	folder := t.TempDir()
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(folder, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
}

func mustProve(t *testing.T, prover Prover) []byte {
	t.Helper()
	credential, err := prover.Prove(t.Context(), someClaim())
	if err != nil {
		t.Fatal(err)
	}
	return credential
}

// made runs munge with options that the package does not use, perhaps as another
// user.
func made(t *testing.T, socket string, uid int, options ...string) []byte {
	t.Helper()
	text, err := encodeClaim(someClaim())
	if err != nil {
		t.Fatal(err)
	}
	// The claim in a test is not secret.
	command := exec.Command("munge", append(options, "--socket="+socket, "--string="+string(text))...)
	command.Dir = "/"
	if uid != os.Getuid() {
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	credential, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	return credential
}

func TestInvalidMungeCredentials(t *testing.T) {
	socket := daemon(t, randomKey())
	prover := mungeAt(t, socket)
	own := "--restrict-uid=" + strconv.Itoa(os.Getuid())
	_, err := prover.Verify(t.Context(), made(t, socket, os.Getuid()))
	wantWords(t, err, "for any user")
	t.Run("expired", func(t *testing.T) {
		credential := made(t, socket, os.Getuid(), own, "--ttl=1")
		// munge measures lifetimes in whole seconds.
		start := time.Now().Unix()
		eventually(t, "the credential expires", func() bool { return time.Now().Unix() > start+2 })
		_, err := prover.Verify(t.Context(), credential)
		wantWords(t, err, "clocks", "chronyd")
	})
	t.Run("other user", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("needs root, to act as two users")
		}
		_, err := prover.Verify(t.Context(), made(t, socket, nobody, own))
		wantWords(t, err, "made by user 65534", "another user's program")
		_, err = prover.Verify(t.Context(), made(t, socket, nobody, "--restrict-uid=65534"))
		wantWords(t, err, "another user's program")
	})
}

func TestNodesMeetByMunge(t *testing.T) {
	of := fixture(t, "n1", "n2", "n3")
	socket := daemon(t, randomKey())
	withMunge := func(node string) Config {
		cfg := of(node)
		cfg.Prover = mungeAt(t, socket)
		cfg.Addresses = func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{loopback}, nil }
		return cfg
	}
	// Another step of the same user occupies the first candidate. Munge proves only
	// the user.
	other := withMunge("n1")
	secrets, err := serverTLS()
	if err != nil {
		t.Fatal(err)
	}
	occupy(t, other.withDefaultsOrFail(t).candidates()[0], headOf(t, secrets, other.Prover, func(c *Claim) {
		c.Step = other.Step
		c.Step.Job += "0"
	}))
	head := startHead(t, withMunge("n1"))
	startWorker(t, withMunge("n2"))
	startWorker(t, withMunge("n3"))
	if err := head.Await(within(t, long), []string{"n2", "n3"}); err != nil {
		t.Fatal(err)
	}
	accepted(t, head)
	accepted(t, head)
	// The daemon of one node has another key.
	foreign := withMunge("n2")
	foreign.Prover = mungeAt(t, daemon(t, randomKey()))
	wantRefused(t, foreign, "different munge keys")
}
