package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"
)

const (
	// mungeTTL is munge's default, and Slurm relies on it, too. So clocks may
	// differ as much here as in Slurm. A shorter lifetime would not protect more,
	// because a credential is valid only on one connection, and only while that
	// waits.
	mungeTTL = 5 * time.Minute
	// mungeLimit bounds one call of munge or unmunge. It usually takes
	// milliseconds, and seconds on a node whose cores are all busy.
	mungeLimit = 30 * time.Second
	// tryLimit is mungeLimit for TryMunge.
	tryLimit = 10 * time.Second
	// mungeDelay bounds the time to read the output of an ended program if another process
	// still has it open. Each child that this process forks meanwhile is such a process,
	// until it calls execve.
	mungeDelay = 3 * time.Second
	// mungeOutput bounds the output of munge and unmunge: an encoded claim and its
	// metadata.
	mungeOutput = 4 * maxClaim
)

// Munge proves with the host's munge. The daemon vouches for the user who made a
// credential, on every node with the same munge key. With AuthType=auth/munge,
// Slurm starts jobs only on such nodes.
type Munge struct {
	munge, unmunge, socket string
	uid                    int
	limit                  time.Duration
	// slots bounds the number of running programs.
	slots chan struct{}
}

// NewMunge finds the programs munge and unmunge. With an empty socket they use
// their default.
func NewMunge(socket string) (*Munge, error) {
	m := &Munge{socket: socket, uid: os.Getuid(), limit: mungeLimit, slots: make(chan struct{}, 2*runtime.NumCPU())}
	for name, path := range map[string]*string{"munge": &m.munge, "unmunge": &m.unmunge} {
		found, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("find the program %s: %w", name, err)
		}
		*path = found
	}
	return m, nil
}

// TryMunge returns an error if munge makes no credentials here.
func TryMunge(ctx context.Context) error {
	m, err := NewMunge("")
	if err != nil {
		return err
	}
	m.limit = tryLimit
	_, err = m.Prove(ctx, Claim{})
	return err
}

// Prove returns a credential that only this user can decode.
func (m *Munge) Prove(ctx context.Context, claim Claim) ([]byte, error) {
	text, err := encodeClaim(claim)
	if err != nil {
		return nil, err
	}
	credential, _, err := m.run(ctx, m.munge, text, "--restrict-uid="+strconv.Itoa(m.uid),
		"--ttl="+strconv.Itoa(int(mungeTTL/time.Second)))
	if err != nil {
		return nil, fmt.Errorf("make a credential: %w", err)
	}
	return bytes.TrimSpace(credential), nil
}

// Verify returns the claim of a credential. It accepts a credential only if this
// user made it, only this user can decode it, and it was not decoded on this node
// before.
func (m *Munge) Verify(ctx context.Context, credential []byte) (Claim, error) {
	output, status, err := m.run(ctx, m.unmunge, credential, "--numeric",
		"--keys=STATUS,UID,UID_RESTRICTION,ENCODE_HOST,ENCODE_TIME,DECODE_TIME")
	if err != nil && status == 0 {
		return Claim{}, fmt.Errorf("read a credential: %w", err)
	}
	// The metadata consists of lines "KEY: value", and ends with an empty line.
	header, text, _ := bytes.Cut(output, []byte("\n\n"))
	metadata := map[string]string{}
	for line := range strings.Lines(string(header)) {
		if key, value, ok := strings.Cut(line, ":"); ok {
			metadata[key] = strings.TrimSpace(value)
		}
	}
	uid := strconv.Itoa(m.uid)
	switch {
	case err != nil:
		return Claim{}, fmt.Errorf("read a credential: %w%s", err, mungeRemedy(status, metadata))
	case metadata["STATUS"] != "0":
		return Claim{}, fmt.Errorf("read a credential: unmunge says STATUS %q, want 0", metadata["STATUS"])
	case metadata["UID"] != uid:
		return Claim{}, fmt.Errorf("the credential was made by user %s, want %s: another user's program sent it", metadata["UID"], uid)
	case metadata["UID_RESTRICTION"] != uid:
		return Claim{}, fmt.Errorf("the credential is for any user, want one for user %s only", uid)
	}
	return decodeClaim(text)
}

// The exit codes of unmunge are munge's error numbers (munge.h).
const (
	mungeExpired      = 15
	mungeRewound      = 16
	mungeReplayed     = 17
	mungeUnauthorized = 18
	mungeInvalid      = 14
)

// mungeRemedy returns the cause of an exit code of unmunge and its remedy, as the end of an
// error, or an empty string.
func mungeRemedy(status int, metadata map[string]string) string {
	switch status {
	case mungeExpired, mungeRewound:
		encoded, _ := strconv.ParseInt(metadata["ENCODE_TIME"], 10, 64)
		decoded, _ := strconv.ParseInt(metadata["DECODE_TIME"], 10, 64)
		return fmt.Sprintf(": the clocks of %s and this node differ by about %s; the administrator sets them, for example with: systemctl restart chronyd",
			metadata["ENCODE_HOST"], time.Duration(decoded-encoded)*time.Second)
	case mungeReplayed:
		return ": it was used on this node before"
	case mungeUnauthorized:
		return ": another user's program sent it"
	case mungeInvalid:
		return ": the nodes have different munge keys, or it was forged; the administrator compares: munge -n | ssh OTHER unmunge"
	}
	return ""
}

// run runs one of the programs with input on its standard input, because arguments
// are visible to others. The status is its exit code, or 0 if it did not exit.
func (m *Munge) run(ctx context.Context, program string, input []byte, args ...string) (output []byte, status int, err error) {
	// Limit the number of processes, because anybody can connect at any rate.
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-ctx.Done():
		return nil, 0, fmt.Errorf("run %s: %w", program, context.Cause(ctx))
	}
	silent := fmt.Errorf("no answer within %s; is munged alive? systemctl status munge", m.limit)
	ctx, cancel := context.WithTimeoutCause(ctx, m.limit, silent)
	defer cancel()
	if m.socket != "" {
		args = append(args, "--socket="+m.socket)
	}
	stdout, stderr := &boundedBuffer{limit: mungeOutput}, &boundedBuffer{limit: 1 << 10}
	command := exec.CommandContext(ctx, program, args...)
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(input), stdout, stderr
	command.WaitDelay = mungeDelay
	command.Dir = "/"
	if err = command.Run(); errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	switch {
	case err == nil && stdout.cut:
		return nil, 0, fmt.Errorf("run %s: it wrote more than %d bytes", program, mungeOutput)
	case err == nil:
		return stdout.content, 0, nil
	case errors.Is(context.Cause(ctx), silent):
		return nil, 0, fmt.Errorf("run %s: %w", program, silent)
	case ctx.Err() != nil:
		return nil, 0, fmt.Errorf("run %s: no answer yet: %w", program, context.Cause(ctx))
	}
	said, _, _ := strings.Cut(strings.TrimSpace(string(stderr.content)), "\n")
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status = max(0, exit.ExitCode())
	}
	return stdout.content, status, fmt.Errorf("run %s: %w: %s", program, err, said)
}

// boundedBuffer keeps the first bytes written to it.
type boundedBuffer struct {
	content []byte
	limit   int
	cut     bool
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	space := b.limit - len(b.content)
	b.cut = b.cut || len(p) > space
	b.content = append(b.content, p[:min(space, len(p))]...)
	return len(p), nil
}
