package settings

import (
	"reflect"
	"strings"
	"testing"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

func TestParse(t *testing.T) {
	file, err := parse("f", []byte("# ours\noptions:\n  port-range: 21000-21999\n  registry: [docker.io=http://mirror:5000, \"b=c\"]\n  no-pull: true\nenvironment:\n  # HTTP_PROXY: x\nforbid: [here]\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := &File{Path: "f", Options: []Entry{
		{Name: "port-range", Values: []string{"21000-21999"}, Line: 3},
		{Name: "registry", Values: []string{"docker.io=http://mirror:5000", "b=c"}, List: true, Line: 4},
		{Name: "no-pull", Values: []string{"true"}, Line: 5},
	}, Forbid: []Entry{{Name: "here", Line: 8}}}
	if !reflect.DeepEqual(file, want) {
		t.Errorf("got %+v, want %+v", file, want)
	}
	for _, empty := range []string{"", "# nothing\n", "options:\n", "forbid:\n"} {
		if file, err := parse("f", []byte(empty)); err != nil || len(file.Options) != 0 {
			t.Errorf("%q: %+v, %v", empty, file, err)
		}
	}
}

// TestMistakes checks that all mistakes are reported at once, each with its line.
func TestMistakes(t *testing.T) {
	_, err := parse("f", []byte("option:\n  a: b\noptions:\n  a: b\n  a: c\n  d:\n  e: {f: g}\n  h: [[i]]\nenvironment: j\nforbid: here\n---\nk: l\n"))
	want := []string{
		"f:1: a second document; a settings file has one",
		`f:1: unknown section "option": there are options, environment and forbid`,
		"f:5: a is given twice", "f:6: d has no value", "f:7: e takes a value, or a list of values",
		"f:8: h takes a list of single values", "f:9: write lines of the form 'name: value'",
		"f:10: forbid takes a list of options, such as '- here'",
	}
	if err == nil || err.Error() != strings.Join(want, "\n") {
		t.Errorf("got\n%v\nwant\n%s", err, strings.Join(want, "\n"))
	}
	for _, text := range []string{"a: [", "- x\n", "\t", "x"} {
		if _, err := parse("f", []byte(text)); err == nil {
			t.Errorf("%q is taken for settings", text)
		}
	}
}

func TestPaths(t *testing.T) {
	env := map[string]string{"HOME": "/home/alice"}
	getenv := func(name string) string { return env[name] }
	check := func(wantNamed bool, want ...string) {
		t.Helper()
		if paths, named := Paths(getenv); !reflect.DeepEqual(paths, want) || named != wantNamed {
			t.Errorf("got %q, %t; want %q, %t", paths, named, want, wantNamed)
		}
	}
	check(false, SitePath, "/home/alice/.config/berth/config.yaml")
	env["XDG_CONFIG_HOME"], env[Variable] = "/conf", "/tmp/trial"
	check(true, "/tmp/trial", "/conf/berth/config.yaml")
	clear(env)
	check(false, SitePath)
}

func FuzzParse(f *testing.F) {
	f.Add("options:\n  port-range: 1-2\n")
	f.Fuzz(func(t *testing.T, text string) {
		fuzzbound.Watch(t)
		_, _ = parse("f", []byte(text))
	})
}
