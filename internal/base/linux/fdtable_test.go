package linux

import (
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// passed duplicates the files of a table into this process, as if it were the
// other one, and returns their descriptors.
func passed(t *testing.T, table *FDTable) PassedFDs {
	t.Helper()
	encoded, err := json.Marshal(table.Numbers(0))
	if err != nil {
		t.Fatal(err)
	}
	var numbers PassedFDs
	if err := json.Unmarshal(encoded, &numbers); err != nil {
		t.Fatal(err)
	}
	for _, fds := range numbers {
		for i, n := range fds {
			if fds[i], err = unix.Dup(int(table.Files()[n].Fd())); err != nil {
				t.Fatal(err)
			}
		}
	}
	return numbers
}

func pipeWith(t *testing.T, text string) *os.File {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close() })
	if _, err := writer.WriteString(text); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	return reader
}

func TestFilesAreTakenByName(t *testing.T) {
	var table FDTable
	table.Add("queue", pipeWith(t, "q0"), pipeWith(t, "q1"))
	table.Add("tun", pipeWith(t, "tun"))
	in := passed(t, &table)
	for _, want := range []struct{ name, text string }{{"tun", "tun"}, {"queue", "q0"}, {"queue", "q1"}} {
		file, err := in.Take(want.name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(file)
		file.Close()
		if err != nil || string(got) != want.text {
			t.Errorf("%s: %q, %v, want %q", want.name, got, err, want.text)
		}
	}
	if err := in.CheckAllTaken(); err != nil {
		t.Error(err)
	}
}

func TestNamesOnOneSideOnlyAreErrors(t *testing.T) {
	var table FDTable
	table.Add("state", pipeWith(t, ""))
	in := passed(t, &table)
	if _, err := in.Take("tun"); err == nil || !strings.Contains(err.Error(), "tun") {
		t.Errorf("a name that was not passed: %v", err)
	}
	if err := in.CheckAllTaken(); err == nil || !strings.Contains(err.Error(), "state") {
		t.Errorf("a file that nothing takes: %v", err)
	}
	file, err := in.Take("state")
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	if _, err := in.Take("state"); err == nil {
		t.Error("a file is taken twice")
	}
}
