package linux

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// passed duplicates the files of a table into this process, as if it were the
// receiving process, and returns their descriptors.
func passed(t *testing.T, table *FDTable) PassedFDs {
	t.Helper()
	numbers := table.Numbers(0)
	for _, fds := range numbers {
		for i, n := range fds {
			var err error
			if fds[i], err = unix.Dup(int(table.files[n].Fd())); err != nil {
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

// receiver names the variable that makes this program the receiving process. Its value
// is the number of ExtraFiles.
const receiver = "FDTABLE_RECEIVER"

// received holds the configuration that the receiving process gets.
type received struct{ Text string }

// TestReceiver runs as the receiving process, which the tests below start. It writes what
// it has received to the file out.
func TestReceiver(t *testing.T) {
	var config received
	var files map[string]*os.File
	var err error
	switch os.Getenv(receiver) {
	case "":
		return
	case "0":
		files, err = ReceiveFiles(&config, "in", "out")
	case "1":
		var fds PassedFDs
		if fds, err = ReceiveFDs(firstExtra+1, &config); err == nil {
			in, inErr := fds.Take("in")
			out, outErr := fds.Take("out")
			files, err = map[string]*os.File{"in": in, "out": out}, errors.Join(inErr, outErr, fds.CheckAllTaken())
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(files["in"])
	if err != nil {
		t.Fatal(err)
	}
	// No program that this one starts inherits the files.
	if inherited, err := exec.Command("/proc/self/exe", "-test.run=^TestInherited$").Output(); err != nil {
		t.Fatalf("%v: %s", err, inherited)
	}
	if _, err := files["out"].WriteString(config.Text + " " + string(text)); err != nil {
		t.Fatal(err)
	}
}

// TestInherited fails in a process that inherited files of its grandparent.
func TestInherited(t *testing.T) {
	if os.Getenv(receiver) == "" {
		return
	}
	for fd := range 16 {
		// Other descriptors belong to Go's runtime and testing.
		if target, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); fd > 2 && (strings.HasPrefix(target, "pipe:") || strings.HasPrefix(target, "/memfd:")) {
			t.Errorf("descriptor %d is %s", fd, target)
		}
	}
}

func TestAnotherProcessReceivesFilesByName(t *testing.T) {
	for extra := range 2 {
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		var table FDTable
		table.Add("out", writer)
		table.Add("in", pipeWith(t, "the file"))
		command := exec.Command("/proc/self/exe", "-test.run=^TestReceiver$")
		command.Env = []string{receiver + "=" + strconv.Itoa(extra)}
		var said strings.Builder
		command.Stdout, command.Stderr = &said, &said
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		command.ExtraFiles = []*os.File{null}[:extra]
		if err := table.Start(command, received{"the configuration and"}); err != nil {
			t.Fatal(err)
		}
		writer.Close()
		got, err := io.ReadAll(reader)
		if err := errors.Join(err, command.Wait()); err != nil {
			t.Fatalf("%v: %s", err, &said)
		}
		if want := "the configuration and the file"; string(got) != want {
			t.Errorf("with %d other files: %q, want %q", extra, got, want)
		}
	}
}
