package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/anishathalye/porcupine"
)

func TestJudge(t *testing.T) {
	write := operation{Client: "a", Number: 0, Kind: "write", Key: "k0", Value: "a-0", Called: 1, Returned: 2}
	lost := operation{Client: "a", Number: 0, Kind: "write", Key: "k0", Value: "a-0", Called: 1}
	swap := operation{Client: "a", Number: 1, Kind: "swap", Key: "k0", Expected: "a-0", Value: "a-1", Called: 3, Returned: 4}
	unclear := operation{Client: "a", Number: 1, Kind: "swap", Key: "k0", Expected: "a-0", Value: "a-1", Called: 3}
	conflict := operation{Client: "a", Number: 1, Kind: "swap", Key: "k0", Expected: "a-0", Conflict: true, Called: 3, Returned: 4}
	read := func(value string, called int64) operation {
		return operation{Client: "b", Number: int(called), Kind: "read", Key: "k0", Value: value, Called: called, Returned: called + 1}
	}
	cases := []struct {
		name string
		all  []operation
		want porcupine.CheckResult
	}{
		{"an acknowledged write is read", []operation{write, read("a-0", 5)}, porcupine.Ok},
		{"an acknowledged write is lost", []operation{write, read(initial, 5)}, porcupine.Illegal},
		{"a read during a write sees either value", []operation{write, read(initial, 1)}, porcupine.Ok},
		{"a write without an answer took place later", []operation{lost, read(initial, 5), read("a-0", 7)}, porcupine.Ok},
		{"a write without an answer took place and was undone", []operation{lost, read("a-0", 5), read(initial, 7)}, porcupine.Illegal},
		{"a value that nobody wrote", []operation{write, read("c-0", 5)}, porcupine.Illegal},
		{"a swap", []operation{write, swap, read("a-1", 5)}, porcupine.Ok},
		{"a swap of a value that is not there", []operation{swap}, porcupine.Illegal},
		{"a swap without an answer", []operation{write, unclear, read("a-0", 5), read("a-1", 7)}, porcupine.Ok},
		{"a swap without an answer never took place", []operation{write, unclear, read("a-0", 5)}, porcupine.Ok},
		{"a conflict without another write", []operation{write, conflict}, porcupine.Illegal},
		{"a conflict", []operation{conflict}, porcupine.Ok},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got, _ := judge(c.all); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

func TestReadHistoryOfKilledClient(t *testing.T) {
	folder := t.TempDir()
	text := `{"Client":"a","Number":0,"Kind":"write","Key":"k0","Value":"a-0","Called":1}
{"Client":"a","Number":0,"Kind":"write","Key":"k0","Value":"a-0","Called":1,"Returned":2}
{"Client":"a","Number":1,"Kind":"read","Key":"k0","Called":3}
{"Client":"a","Numb`
	if err := os.WriteFile(filepath.Join(folder, "a.history"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := readHistory(folder)
	if err != nil || len(all) != 2 || all[0].Returned != 2 || all[1].Returned != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := readHistory(t.TempDir()); err == nil {
		t.Error("no error for a folder without clients")
	}
}
