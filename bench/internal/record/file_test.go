package record

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func trial(n int) Line {
	return Line{Trial: &Trial{Case: "cpu", System: "bare", Phase: Run, Number: n, Values: []Value{{Name: "events", Unit: "1/s", Value: 2.5}}}}
}

func TestLinesAreAdded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	for n := range 2 {
		w, err := Append(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Add(trial(n)); err != nil {
			t.Fatal(err)
		}
		if _, err := Append(path); err == nil || !strings.Contains(err.Error(), "another berth bench") {
			t.Errorf("a second writer: %v", err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	lines, err := ReadFile(path)
	if err != nil || len(lines) != 2 || lines[1].Trial.Number != 1 || lines[0].Trial.Values[0].Value != 2.5 {
		t.Fatalf("got %+v, %v", lines, err)
	}
}

// TestPackedFilesAreOnlyRead: packed files can be read and not appended to.
func TestPackedFilesAreOnlyRead(t *testing.T) {
	var content bytes.Buffer
	testPacked(t, "records.jsonl.gz", &content, gzip.NewWriter(&content))
	content.Reset()
	encoder, err := zstd.NewWriter(&content)
	if err != nil {
		t.Fatal(err)
	}
	testPacked(t, "records.jsonl.zst", &content, encoder)
}

func testPacked(t *testing.T, name string, content *bytes.Buffer, z io.WriteCloser) {
	path := filepath.Join(t.TempDir(), name)
	line := trial(7)
	line.Schema = schema
	err := json.NewEncoder(z).Encode(line)
	if err == nil {
		err = z.Close()
	}
	if err == nil {
		err = os.WriteFile(path, content.Bytes(), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if lines, err := ReadFile(path); err != nil || len(lines) != 1 || lines[0].Trial.Number != 7 {
		t.Errorf("got %+v, %v", lines, err)
	}
	if _, err := Append(path); err == nil || !strings.Contains(err.Error(), "gunzip") {
		t.Errorf("they are added to: %v", err)
	}
}

// TestCutOff: a crash in the middle of a line costs only that line.
func TestCutOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	for n := range 3 {
		w, err := Append(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Add(trial(n)); err != nil {
			t.Fatal(err)
		}
		w.Close()
		if n == 1 {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, info.Size()-20); err != nil {
				t.Fatal(err)
			}
		}
	}
	lines, err := ReadFile(path)
	if err != nil || len(lines) != 3 || lines[0].Trial.Number != 0 || lines[1].CutOff != 2 || lines[1].Trial != nil || lines[2].Trial.Number != 2 {
		t.Fatalf("got %+v, %v", lines, err)
	}
}

func TestReadRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"{\"schema\":1}\nnonsense\n":         "line 2",
		"{\"schema\":9}\n":                   "version 9",
		"{\"schema\":1, \"trial\": \"x\"}\n": "line 1",
	} {
		if _, err := read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if lines, err := ReadFile("/nonexistent/x"); err != nil || lines != nil {
		t.Errorf("no file: %v, %v", lines, err)
	}
}

// TestOlderForm: records from before plans existed are not reported as damaged.
func TestOlderForm(t *testing.T) {
	for _, name := range []string{"a.json", "a.json.gz", "a.jsonl"} {
		path := filepath.Join(t.TempDir(), name)
		var content bytes.Buffer
		to := io.Writer(&content)
		if strings.HasSuffix(name, packedGzip) {
			z := gzip.NewWriter(&content)
			to = z
		}
		_, err := io.WriteString(to, "{\n  \"date\": \"2026-11-21\"\n}\n")
		if z, is := to.(*gzip.Writer); err == nil && is {
			err = z.Close()
		}
		if err == nil {
			err = os.WriteFile(path, content.Bytes(), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = ReadFile(path)
		if err == nil || strings.Contains(err.Error(), "older than 'berth bench' (.json)") != (name != "a.jsonl") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFirstSchema: systems in records of the first schema get their current names.
func TestFirstSchema(t *testing.T) {
	lines, err := read(strings.NewReader(`{"schema":1,"session":{"name":"x","reference":"bare"}}
{"schema":1,"trial":{"system":"berth"}}
{"schema":1,"trial":{"system":"berth-fast"}}
{"schema":1,"unmeasured":{"system":"berth-host"}}
{"schema":2,"session":{"name":"y"}}
{"schema":2,"trial":{"system":"berth"}}
`))
	if err != nil {
		t.Fatal(err)
	}
	before, after := lines[0].Session, lines[4].Session
	got := []string{
		before.Reference, lines[1].Trial.System, lines[2].Trial.System, lines[3].Unmeasured.System, before.System("berth-fast"), lines[5].Trial.System, after.System("berth"),
	}
	if want := []string{"bare", "berth-overlay", "berth", "berth-host", "berth", "berth", "berth"}; !slices.Equal(got, want) || !before.Renamed() || after.Renamed() {
		t.Errorf("got %v, want %v", got, want)
	}
}
