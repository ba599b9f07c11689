package crilog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// file is a log file. It keeps what was written, and counts the calls.
type file struct {
	bytes.Buffer
	writes int
	fails  error
	room   int // bytes to write before it fails
}

func (f *file) Write(data []byte) (int, error) {
	f.writes++
	if f.fails != nil {
		n, _ := f.Buffer.Write(data[:min(f.room, len(data))])
		f.room -= n
		return n, f.fails
	}
	return f.Buffer.Write(data)
}

// counts holds the sums of a Logger's events.
type counts struct{ entries, read, records, wrote, split, failed, lost int }

func newLogger(f *file, maxLine int) (*Logger, *counts) {
	c := &counts{}
	return New(f, "stderr", maxLine, Events{
		Read:   func(entries, bytes int) { c.entries, c.read = c.entries+entries, c.read+bytes },
		Wrote:  func(records, bytes int) { c.records, c.wrote = c.records+records, c.wrote+bytes },
		Split:  func(records int) { c.split += records },
		Failed: func(_ error, lost int) { c.failed, c.lost = c.failed+1, c.lost+lost },
	}), c
}

// texts returns the records of a file without their times and streams.
func (f *file) texts(t *testing.T) []string {
	t.Helper()
	var texts []string
	last := ""
	for line := range strings.Lines(f.String()) {
		stamp, rest, _ := strings.Cut(line, " ")
		stream, rest, _ := strings.Cut(rest, " ")
		if _, err := time.Parse(time.RFC3339Nano, stamp); err != nil || stream != "stderr" || !strings.HasSuffix(rest, "\n") {
			t.Fatalf("record %q after %q", line, last)
		}
		last = line
		texts = append(texts, strings.TrimSuffix(rest, "\n"))
	}
	return texts
}

// expected returns the records of an output, according to containerd's logger.
func expected(output string, maxLine int) []string {
	var texts []string
	for line := range strings.Lines(output) {
		text, ended := strings.CutSuffix(line, "\n")
		tag := "P "
		if ended {
			text, tag = strings.TrimSuffix(text, "\r"), "F "
		}
		for maxLine > 0 && len(text) > maxLine {
			texts, text = append(texts, "P "+text[:maxLine]), text[maxLine:]
		}
		texts = append(texts, tag+text)
	}
	return texts
}

func TestRecordsMatchContainerd(t *testing.T) {
	a := func(n int) string { return strings.Repeat("a", n) }
	for _, test := range []struct {
		output  string
		maxLine int
		want    []string
	}{
		{"one\ntwo\n", 16, []string{"F one", "F two"}},
		{"one\ntwo", 16, []string{"F one", "P two"}},
		{"", 16, nil},
		{"\n\r\n", 16, []string{"F ", "F "}},
		{"one\r\n\rtwo\r\r\nthree\r", 16, []string{"F one", "F \rtwo\r", "P three\r"}},
		{a(16) + "\n" + a(16) + "\r\n" + a(16), 16, []string{"F " + a(16), "F " + a(16), "P " + a(16)}},
		{a(17) + "\n" + a(33) + "\r\n", 16, []string{"P " + a(16), "F a", "P " + a(16), "P " + a(16), "F a"}},
		{a(32) + "\n" + a(33), 16, []string{"P " + a(16), "F " + a(16), "P " + a(16), "P " + a(16), "P a"}},
		{a(100_000) + "\n", 0, []string{"F " + a(100_000)}},
		{a(100_000) + "\n", -1, []string{"F " + a(100_000)}},
	} {
		for _, piece := range []int{1, 7, 16, 17, 1 << 20} {
			if got := records(t, test.output, test.maxLine, func() int { return piece }); fmt.Sprint(got) != fmt.Sprint(test.want) {
				t.Errorf("%.40q in pieces of %d: got %.200q, want %.200q", test.output, piece, got, test.want)
			}
		}
		if got := expected(test.output, test.maxLine); fmt.Sprint(got) != fmt.Sprint(test.want) {
			t.Errorf("%.40q: the test expects %.200q", test.output, got)
		}
	}
}

func TestOutputInArbitraryPieces(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		output := make([]byte, random.IntN(300))
		for i := range output {
			output[i] = "\n\n\rabcdef"[random.IntN(9)]
		}
		maxLine := random.IntN(8)
		got := records(t, string(output), maxLine, func() int { return 1 + random.IntN(40) })
		if want := expected(string(output), maxLine); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%q with lines of %d: got %q, want %q", output, maxLine, got, want)
		}
	}
}

// records returns the records of an output that comes in pieces.
func records(t *testing.T, output string, maxLine int, piece func() int) []string {
	t.Helper()
	var f file
	l, c := newLogger(&f, maxLine)
	for rest := output; len(rest) > 0; {
		size := min(piece(), len(rest))
		if n, err := io.WriteString(l, rest[:size]); n != size || err != nil {
			t.Fatal(n, err)
		}
		rest = rest[size:]
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	<-l.Done()
	texts := f.texts(t)
	split := 0
	for _, text := range expected(output, maxLine) {
		if text[0] == 'P' {
			split++
		}
	}
	if len(output) > 0 && output[len(output)-1] != '\n' {
		split--
	}
	if c.read != len(output) || c.records != len(texts) || c.wrote != f.Len() || c.split != split || c.failed != 0 {
		t.Errorf("%q: counted %+v", output, *c)
	}
	return texts
}

// One system call for each line took most of the time that a container needed to
// write short lines.
func TestManyLinesTakeOneWrite(t *testing.T) {
	var f file
	l, _ := newLogger(&f, 16<<10)
	_, _ = io.WriteString(l, strings.Repeat("line\n", 1000))
	if f.writes != 1 || strings.Count(f.String(), " F line\n") != 1000 {
		t.Errorf("%d writes, %d bytes", f.writes, f.Len())
	}
	// Output without end needs no memory without end.
	_, _ = io.WriteString(l, strings.Repeat("line\n", 100_000))
	if c := cap(l.out); f.writes < 20 || c != 0 {
		t.Errorf("%d writes, a buffer of %d bytes", f.writes, c)
	}
}

func TestUnwritableLogDoesNotEndContainer(t *testing.T) {
	f := file{fails: errors.New("disk full")}
	l, c := newLogger(&f, 16)
	if n, err := io.WriteString(l, "lost\n"); n != 5 || err != nil {
		t.Error(n, err)
	}
	f.fails = nil
	_, _ = io.WriteString(l, "kept\n")
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if got := f.texts(t); len(got) != 1 || got[0] != "F kept" || c.failed != 1 || c.records != 1 || c.lost != 5 {
		t.Errorf("got %q, counted %+v", got, *c)
	}
	if _, err := io.WriteString(l, "late\n"); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

// A disk that is full takes the beginning of a record. What follows once it has room is
// not a part of that record.
func TestRecordAfterTornRecord(t *testing.T) {
	full := errors.New("disk full")
	f := file{fails: full, room: 40}
	l, _ := newLogger(&f, 16)
	_, _ = io.WriteString(l, "torn line\n")
	_, _ = io.WriteString(l, "lost\n")
	f.fails = nil
	_, _ = io.WriteString(l, "kept\n")
	lines := strings.Split(f.String(), "\n")
	if len(lines) != 3 || len(lines[0]) != 40 || !strings.HasSuffix(lines[1], " F kept") {
		t.Errorf("got %q", lines)
	}
}

// Wherever a full disk cuts the records, what a reader of the log gets and what is
// counted are together what the container wrote.
func TestLostBytesAreCounted(t *testing.T) {
	output := "one\n\na line with spaces\n" + strings.Repeat("x", 40) + "\nno end"
	for room := range 600 {
		f := file{fails: errors.New("disk full"), room: room}
		l, c := newLogger(&f, 16)
		for piece := range slices.Chunk([]byte(output), 30) {
			_, _ = l.Write(piece)
		}
		_ = l.Close()
		got := 0
		for record := range strings.Lines(f.String()) {
			fields := strings.SplitN(strings.TrimSuffix(record, "\n"), " ", 4)
			if len(fields) < 4 {
				continue
			}
			if got += len(fields[3]); fields[2] == "F" {
				got++
			}
		}
		if got+c.lost != len(output) {
			t.Fatalf("room for %d bytes: %d bytes arrive, %d are lost, of %d: %q", room, got, c.lost, len(output), f.String())
		}
	}
}

func BenchmarkShortLines(b *testing.B) {
	out, err := os.CreateTemp(b.TempDir(), "log")
	if err != nil {
		b.Fatal(err)
	}
	defer out.Close()
	l := New(out, "stdout", 16<<10, Events{Read: func(int, int) {}, Wrote: func(int, int) {}, Split: func(int) {}, Failed: func(err error, _ int) { b.Error(err) }})
	data := bytes.Repeat([]byte("1234567\n"), 4096) // as much as containerd reads at once
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		_, _ = l.Write(data)
	}
	b.ReportMetric(4096*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}
