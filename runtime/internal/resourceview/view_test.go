package resourceview

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/cpuset"

	"berth.dev/berth/runtime/internal/fusewire"
	"berth.dev/berth/runtime/internal/fuzzbound"
)

var update = flag.Bool("update", false, "write the golden files again")

// testView returns the view of a container with 1.5 CPUs on CPUs 1 and 3 of a
// machine with four.
func testView() *View {
	return &View{
		Limits: func() Limits { return Limits{Memory: 512 << 20, MilliCPU: 1500, CPUs: cpuset.New(1, 3)} },
		Usage: func() Usage {
			return Usage{
				Anonymous: 100 << 20, Shared: 20 << 20, Mapped: 30 << 20, PageTables: 1 << 20,
				User: 3 * time.Second, System: time.Second, Faults: 9, MajorFaults: 2, Threads: 5,
			}
		},
		Proc: "testdata/proc", Version1: true,
	}
}

func TestFilesGolden(t *testing.T) {
	static := testView()
	static.Usage = nil
	for name, view := range map[string]*View{"live": testView(), "once": static} {
		dir := t.TempDir()
		if err := Write(dir, view.Files()); err != nil {
			t.Fatal(err)
		}
		for _, path := range view.Mounts() {
			if _, err := os.Stat(filepath.Join(dir, path)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		var got strings.Builder
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			got.WriteString("== " + strings.TrimPrefix(path, dir) + "\n" + string(text))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		golden := filepath.Join("testdata", name+".txt")
		if *update {
			if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != string(want) {
			t.Errorf("differs from %s (run with -update if that is meant):\n%s", golden, got.String())
		}
	}
}

// The machine has less than the limit allows, and a container may be above it.
func TestFreeMemory(t *testing.T) {
	machine := map[string]uint64{"MemAvailable": 1000}
	for _, c := range []struct{ limit, used, want uint64 }{{500, 100, 400}, {5000, 100, 1000}, {500, 600, 0}} {
		if got := free(machine, Limits{Memory: c.limit}, Usage{Anonymous: c.used}); got != c.want {
			t.Errorf("limit %d, used %d: %d free, want %d", c.limit, c.used, got, c.want)
		}
	}
}

func TestLoad(t *testing.T) {
	var l load
	begin := time.Unix(1000, 0)
	l.advance(0, begin)
	// Two CPUs were busy for a minute: 2 - 2/e.
	got := l.advance(2*time.Minute, begin.Add(time.Minute))
	if got[0] < 1.26 || got[0] > 1.27 || got[1] < 0.36 || got[1] > 0.37 {
		t.Errorf("after a minute of two CPUs: %v", got)
	}
	if again := l.advance(2*time.Minute, begin.Add(time.Minute)); again != got {
		t.Errorf("at the same time: %v, then %v", got, again)
	}
	if got = l.advance(2*time.Minute, begin.Add(time.Hour)); got[0] > 0.01 {
		t.Errorf("after an hour of nothing: %v", got)
	}
}

func request(opcode uint32, id uint64, body []byte) []byte {
	b := make([]byte, fusewire.InHeader)
	fusewire.Order.PutUint32(b[0:], uint32(fusewire.InHeader+len(body)))
	fusewire.Order.PutUint32(b[4:], opcode)
	fusewire.Order.PutUint64(b[8:], 7)
	fusewire.Order.PutUint64(b[16:], id)
	return append(b, body...)
}

// ask sends a request to a server and returns the answer's body.
func ask(t *testing.T, s *server, opcode uint32, id uint64, body []byte) ([]byte, unix.Errno) {
	t.Helper()
	answer := s.handle(request(opcode, id, body))
	if len(answer) < fusewire.OutHeader || fusewire.Order.Uint64(answer[8:]) != 7 {
		t.Fatalf("answer to %d: %v", opcode, answer)
	}
	return answer[fusewire.OutHeader:], unix.Errno(-int32(fusewire.Order.Uint32(answer[4:])))
}

func readBody(offset uint64, size uint32) []byte {
	body := make([]byte, 40)
	fusewire.Order.PutUint64(body[8:], offset)
	fusewire.Order.PutUint32(body[16:], size)
	return body
}

func TestServer(t *testing.T) {
	count := 0
	s := newServer(map[string]func() string{
		"/a/b": func() string { count++; return strings.Repeat(string(rune('0'+count)), 10) },
		"/c":   func() string { return "" },
	})
	id := uint64(rootID)
	for _, name := range []string{"a", "b"} {
		entry, errno := ask(t, s, fusewire.OpLookup, id, []byte(name+"\x00"))
		if errno != 0 {
			t.Fatalf("look up %s: %v", name, errno)
		}
		id = fusewire.Order.Uint64(entry)
	}
	if _, errno := ask(t, s, fusewire.OpLookup, rootID, []byte("b\x00")); errno != unix.ENOENT {
		t.Errorf("look up what is not there: %v", errno)
	}
	// In parts it is one text; from the beginning it is a new one.
	var got string
	for _, offset := range []uint64{0, 4, 8, 12, 0} {
		part, _ := ask(t, s, fusewire.OpRead, id, readBody(offset, 4))
		got += string(part)
	}
	if got != "11111111112222" {
		t.Errorf("read %q", got)
	}
	list, _ := ask(t, s, fusewire.OpReaddir, rootID, readBody(0, 4096))
	rest, _ := ask(t, s, fusewire.OpReaddir, rootID, readBody(2, 4096))
	if names := string(list); !strings.Contains(names, "a") || !strings.Contains(names, "c") || len(rest) >= len(list) || len(rest) == 0 {
		t.Errorf("listed %q, then %q", list, rest)
	}
	if _, errno := ask(t, s, fusewire.OpGetattr, 99, nil); errno != unix.ENOENT {
		t.Errorf("attributes of what is not there: %v", errno)
	}
	if _, errno := ask(t, s, 16, id, nil); errno != unix.ENOSYS {
		t.Errorf("write: %v", errno)
	}
}

func FuzzServer(f *testing.F) {
	f.Add([]byte{})
	f.Add(request(0, 0, nil))
	f.Add(request(fusewire.OpRead, 3, readBody(0, 10)))
	f.Add(request(fusewire.OpReaddir, rootID, readBody(0, 100)))
	f.Fuzz(func(t *testing.T, request []byte) {
		fuzzbound.Watch(t)
		newServer(map[string]func() string{"/a/b": func() string { return "text" }}).handle(request)
	})
}
