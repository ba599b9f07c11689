package fuzzbound

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// sink keeps the compiler from removing allocations.
var sink []byte

// TestInputsBeyondABoundFail runs TestInput in processes that may fail.
func TestInputsBeyondABoundFail(t *testing.T) {
	for input, want := range map[string]string{
		"frugal":  "PASS",
		"memory":  "more than 256",
		"garbage": "more than 256",
		"busy":    "of CPU time, more than 1s",
		"hangs":   "of CPU time, more than 1s",
	} {
		command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInput$")
		command.Env = append(os.Environ(), "FUZZBOUND_INPUT="+input)
		out, err := command.CombinedOutput()
		if (err == nil) != (input == "frugal") || !bytes.Contains(out, []byte(want)) {
			t.Errorf("%s: %v, without %q:\n%s", input, err, want, out)
		}
		if input == "hangs" && !strings.Contains(string(out), "TestInput") {
			t.Errorf("%s: no stack says where:\n%s", input, out)
		}
	}
}

// TestInput uses what the environment says.
func TestInput(t *testing.T) {
	Watch(t)
	switch os.Getenv("FUZZBOUND_INPUT") {
	case "memory":
		sink = make([]byte, maxMemory+1)
	case "garbage":
		for range 300 {
			sink = make([]byte, 1<<20)
		}
	case "busy":
		for begin := now(); now().sub(begin).cpu <= maxCPU; {
		}
	case "hangs":
		for {
			sink = sink[:len(sink):len(sink)]
		}
	}
}
