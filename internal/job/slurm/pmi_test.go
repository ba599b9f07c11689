package slurm

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

// pmiServer answers as Slurm's plugin does.
type pmiServer struct {
	mu     sync.Mutex
	values map[string]string
	// waiting holds the tasks in the barrier. All of them leave it when it holds
	// all tasks.
	waiting []net.Conn
	tasks   int
	serving sync.WaitGroup
}

// task returns the environment of a task.
func (s *pmiServer) task(t *testing.T) func(string) string {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(ends[0]), "server")
	conn, err := net.FileConn(file)
	file.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); s.serving.Wait() })
	s.serving.Go(func() {
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			s.answer(conn, lines.Text())
		}
	})
	return func(name string) string {
		if name == pmiVariable {
			return strconv.Itoa(ends[1])
		}
		return ""
	}
}

func (s *pmiServer) answer(conn net.Conn, line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	words := map[string]string{}
	for word := range strings.FieldsSeq(line) {
		name, value, _ := strings.Cut(word, "=")
		words[name] = value
	}
	switch words["cmd"] {
	case "init":
		fmt.Fprintf(conn, "cmd=response_to_init rc=0 pmi_version=%s pmi_subversion=%s\n", words["pmi_version"], words["pmi_subversion"])
	case "get_my_kvsname":
		fmt.Fprintln(conn, "cmd=my_kvsname rc=0 kvsname=4.0")
	case "put":
		s.values[words["key"]] = words["value"]
		fmt.Fprintln(conn, "cmd=put_result rc=0")
	case "get":
		if value, ok := s.values[words["key"]]; ok {
			fmt.Fprintln(conn, "cmd=get_result rc=0 value="+value)
		} else {
			fmt.Fprintln(conn, "cmd=get_result rc=1")
		}
	case "barrier_in":
		if s.waiting = append(s.waiting, conn); len(s.waiting) == s.tasks {
			for _, task := range s.waiting {
				fmt.Fprintln(task, "cmd=barrier_out rc=0")
			}
		}
	case "finalize":
		fmt.Fprintln(conn, "cmd=finalize_ack rc=0")
	}
}

func TestExchangeOverPMI(t *testing.T) {
	server := &pmiServer{values: map[string]string{}, tasks: 3}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var running sync.WaitGroup
	for i := range server.tasks {
		getenv := server.task(t)
		running.Go(func() {
			pmi, err := OpenPMI(ctx, getenv)
			if err != nil {
				t.Error(err)
				return
			}
			// The last task neither sends nor reads a value.
			own, names := "k"+strconv.Itoa(i), []string{"k0", "k1"}
			if i == 2 {
				own, names = "", nil
			}
			texts, err := pmi.Exchange(ctx, own, "of"+strconv.Itoa(i), names)
			if want := []string{"of0", "of1"}[:len(names)]; err != nil || strings.Join(texts, " ") != strings.Join(want, " ") {
				t.Errorf("task %d got %q, %v, want %q", i, texts, err, want)
			}
			if err := pmi.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
}

func TestExchangeEndsWithItsContext(t *testing.T) {
	server := &pmiServer{values: map[string]string{}, tasks: 2}
	pmi, err := OpenPMI(t.Context(), server.task(t))
	if err != nil {
		t.Fatal(err)
	}
	late := fmt.Errorf("it takes too long")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, late)
	defer cancel()
	if _, err := pmi.Exchange(ctx, "k", "v", nil); err == nil || !strings.Contains(err.Error(), late.Error()) {
		t.Errorf("%v, want %v", err, late)
	}
}

func TestExchangeRefusesInvalidTexts(t *testing.T) {
	server := &pmiServer{values: map[string]string{}, tasks: 1}
	pmi, err := OpenPMI(t.Context(), server.task(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"two words", "a\nb", "a=b", strings.Repeat("x", pmiValue+1)} {
		if _, err := pmi.Exchange(t.Context(), "k", text, nil); err == nil {
			t.Errorf("%.20q is carried", text)
		}
	}
	if _, err := pmi.Exchange(t.Context(), "", "", []string{"unknown"}); err == nil || !strings.Contains(err.Error(), "rc=1") {
		t.Errorf("%v for a name that nobody has put", err)
	}
}

func TestNoPMI(t *testing.T) {
	for _, value := range []string{"", "x", "1"} {
		if HasPMI(func(string) string { return value }) {
			t.Errorf("PMI_FD=%q counts as PMI", value)
		}
	}
}

// FuzzPMI gives a task any answers of srun.
func FuzzPMI(f *testing.F) {
	f.Add("cmd=response_to_init rc=0\ncmd=my_kvsname kvsname=a\ncmd=put_result rc=0\ncmd=barrier_out\ncmd=get_result rc=0 value=x\ncmd=finalize_ack\n")
	f.Add("cmd=response_to_init rc=1 =\n\n")
	f.Fuzz(func(t *testing.T, answers string) {
		fuzzbound.Watch(t)
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		server := os.NewFile(uintptr(ends[0]), "server")
		// More would wait in the socket for a task that reads no more.
		if _, err := server.WriteString(answers[:min(len(answers), 64<<10)]); err != nil {
			t.Fatal(err)
		}
		if err := unix.Shutdown(ends[0], unix.SHUT_WR); err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		pmi, err := OpenPMI(t.Context(), func(string) string { return strconv.Itoa(ends[1]) })
		if err != nil {
			return
		}
		names := []string{"berth-0", "berth-1"}
		texts, err := pmi.Exchange(t.Context(), names[0], "text", names)
		if err == nil && len(texts) != len(names) {
			t.Errorf("%d texts of %d tasks", len(texts), len(names))
		}
		_ = pmi.Close(t.Context())
	})
}
