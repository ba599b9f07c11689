package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const librarySource = `
#include <stdio.h>
#include <string.h>
static const char *words[] = { "nothing", "a pointer" };
static int calls = 40, empty[1000];
__attribute__((constructor)) static void begin(void) { calls++; }
const char *word(int i) { return words[i]; }
int count(void) { return ++calls + empty[999]; }
void say(const char *text) { fprintf(stdout, "%s %zu\n", text, strlen(text)); }
`

const programSource = `
const char *word(int);
int count(void);
void say(const char *);
int main(void) { say(word(1)); return count(); }
`

// TestLink makes a library, links it into a program as an object file, and
// runs that: data, constructors and calls into the C library all work.
func TestLink(t *testing.T) {
	dir := compile(t, librarySource)
	if err := run(filepath.Join(dir, "library.so"), "tested", 0x10000000, dir); err != nil {
		t.Fatal(err)
	}
	write := os.WriteFile(filepath.Join(dir, "program.c"), []byte(programSource), 0o600)
	if write != nil {
		t.Fatal(write)
	}
	program := filepath.Join(dir, "program")
	gcc(t, "-static", "-no-pie", "-o", program, filepath.Join(dir, "program.c"),
		filepath.Join(dir, "tested.S"), "-Wl,-T,"+filepath.Join(dir, "tested.ld"))

	command := exec.Command(program)
	out, _ := command.Output()
	if got := command.ProcessState.ExitCode(); got != 42 {
		t.Errorf("exit code: got %d, want 42: 40, one by the constructor, one by the call", got)
	}
	if got, want := string(out), "a pointer 9\n"; got != want {
		t.Errorf("output: got %q, want %q", got, want)
	}
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the program has a segment %v: it is not static", p.Type)
		}
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_W != 0 && p.Flags&elf.PF_X != 0 {
			t.Errorf("the segment at %#x can be written and executed", p.Vaddr)
		}
	}
}

func TestRefuseThreadLocal(t *testing.T) {
	dir := compile(t, "__thread int each = 7; int *mine(void) { return &each; }")
	err := run(filepath.Join(dir, "library.so"), "tested", 0x10000000, dir)
	if err == nil || !strings.Contains(err.Error(), "thread-local") {
		t.Errorf("a library with thread-local storage: got error %v", err)
	}
}

// compile makes library.so in a temporary directory.
func compile(t *testing.T, source string) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "library.c")
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	gcc(t, "-shared", "-fPIC", "-O1", "-o", filepath.Join(dir, "library.so"), file)
	return dir
}

func gcc(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
