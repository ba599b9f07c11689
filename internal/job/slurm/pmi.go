package slurm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// PMI exchanges short texts between all tasks of a step; it was made for MPI.
// srun offers it with --mpi=pmi2, or if MpiDefault selects it, on a descriptor
// that each task inherits. This is version 1 of the protocol: one line per
// request and one per answer. It is simpler than version 2, and Slurm's plugin
// speaks both (src/plugins/mpi/pmi2/pmi1.c).
//
// Slurm neither encrypts nor signs the texts: put no secret in them.
type PMI struct {
	conn   net.Conn
	reader *bufio.Reader
	space  string
}

// pmiVariable names the descriptor.
const pmiVariable = "PMI_FD"

// pmiValue bounds a text, in bytes; MAXVALLEN in pmi.h.
const pmiValue = 1023

// HasPMI reports whether srun gave this task a PMI descriptor.
func HasPMI(getenv func(string) string) bool {
	_, err := pmiDescriptor(getenv)
	return err == nil
}

func pmiDescriptor(getenv func(string) string) (int, error) {
	fd, err := strconv.Atoi(getenv(pmiVariable))
	if err != nil || fd <= 2 {
		return 0, errors.New("this step has none: srun makes one with --mpi=pmi2")
	}
	return fd, nil
}

// KeepPMI prevents programs that this process starts from inheriting the
// descriptor, because it allows too much, such as starting programs in the job.
func KeepPMI(getenv func(string) string) {
	if fd, err := pmiDescriptor(getenv); err == nil {
		unix.CloseOnExec(fd)
	}
}

// OpenPMI begins an exchange. Each task can do that once.
func OpenPMI(ctx context.Context, getenv func(string) string) (*PMI, error) {
	fd, err := pmiDescriptor(getenv)
	if err != nil {
		return nil, fmt.Errorf("open PMI: %w", err)
	}
	file := os.NewFile(uintptr(fd), "pmi")
	conn, err := net.FileConn(file)
	file.Close()
	if err != nil {
		return nil, fmt.Errorf("open PMI at descriptor %d: %w", fd, err)
	}
	p := &PMI{conn: conn, reader: bufio.NewReader(conn)}
	_, err = p.ask(ctx, "cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")
	if err == nil {
		var answer map[string]string
		answer, err = p.ask(ctx, "cmd=get_my_kvsname", "my_kvsname")
		p.space = answer["kvsname"]
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("open PMI: %w", err)
	}
	return p, nil
}

// Exchange sends this task's text to all tasks of the step, and returns their texts
// in the order of the names. It returns when all tasks have called it, so a task
// without a text must call it, too, with an empty name. Names and texts must not
// contain spaces. Texts have at most 1023 bytes, names 60.
func (p *PMI) Exchange(ctx context.Context, own, text string, names []string) ([]string, error) {
	if own != "" {
		if strings.ContainsAny(own+text, " \n=;") || len(text) > pmiValue {
			return nil, fmt.Errorf("put %s into PMI: it holds what PMI cannot carry", own)
		}
		if _, err := p.ask(ctx, "cmd=put kvsname="+p.space+" key="+own+" value="+text, "put_result"); err != nil {
			return nil, fmt.Errorf("put %s into PMI: %w", own, err)
		}
	}
	if _, err := p.ask(ctx, "cmd=barrier_in", "barrier_out"); err != nil {
		return nil, fmt.Errorf("wait in PMI for all tasks of the step: %w", err)
	}
	var texts []string
	for _, name := range names {
		answer, err := p.ask(ctx, "cmd=get kvsname="+p.space+" key="+name, "get_result")
		if err != nil {
			return nil, fmt.Errorf("get %s from PMI: %w", name, err)
		}
		texts = append(texts, answer["value"])
	}
	return texts, nil
}

// Close ends this task's part of the exchange.
func (p *PMI) Close(ctx context.Context) error {
	_, err := p.ask(ctx, "cmd=finalize", "finalize_ack")
	return errors.Join(err, p.conn.Close())
}

// ask sends a line and returns the words of the answer, "name=value" each. The
// answer must be the wanted command with a return code of 0.
func (p *PMI) ask(ctx context.Context, question, want string) (map[string]string, error) {
	// The connection cannot be used again after an incomplete answer.
	stop := context.AfterFunc(ctx, func() { p.conn.Close() })
	defer stop()
	because := func(err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	if _, err := p.conn.Write([]byte(question + "\n")); err != nil {
		return nil, because(err)
	}
	line, err := p.reader.ReadSlice('\n')
	if err != nil {
		return nil, because(err)
	}
	answer := map[string]string{}
	for word := range strings.FieldsSeq(string(line)) {
		name, value, _ := strings.Cut(word, "=")
		answer[name] = value
	}
	if answer["cmd"] != want || !slices.Contains([]string{"", "0"}, answer["rc"]) {
		return nil, fmt.Errorf("srun's PMI answers %q, want %s with rc=0", strings.TrimSpace(string(line)), want)
	}
	return answer, nil
}
