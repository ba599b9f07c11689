package workload

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

func TestParse(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want []string // "Kind name"
		err  string
	}{
		"documents": {
			text: "# a comment\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\n---\napiVersion: batch/v1\nkind: Job\nmetadata: {generateName: b-}\n",
			want: []string{"Pod a", "Job b-*"},
		},
		"list": {
			text: "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n- {apiVersion: v1, kind: Secret, metadata: {name: b}}\n",
			want: []string{"Pod a", "Secret b"},
		},
		"json":        {text: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}`, want: []string{"Pod a"}},
		"empty":       {text: "---\n# nothing\n", err: "no Kubernetes object"},
		"no kind":     {text: "apiVersion: v1\nmetadata: {name: a}\n", err: "kind is missing"},
		"no name":     {text: "apiVersion: v1\nkind: Pod\n", err: "metadata.name"},
		"not a map":   {text: "- a\n- b\n", err: "not valid YAML"},
		"broken yaml": {text: "a: [b\n", err: "not valid YAML"},
		"one of two":  {text: "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\nkind: x\n", want: []string{"Pod a"}, err: "f.yaml (document 2)"},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := parse("f.yaml", []byte(test.text), io.Discard)
			if (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error is %v, want %q", err, test.err)
			}
			if len(objects) != len(test.want) {
				t.Fatalf("%d objects, want %v", len(objects), test.want)
			}
			for i, object := range objects {
				if object.Name() != test.want[i] {
					t.Errorf("object %d is %s, want %s", i, object.Name(), test.want[i])
				}
			}
		})
	}
}

func TestReadReportsEveryFile(t *testing.T) {
	_, err := Read([]string{"missing-1.yaml", "-", "missing-2.yaml"}, strings.NewReader("x: 1\n"))
	for _, want := range []string{"missing-1.yaml", "standard input", "missing-2.yaml"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

func TestReadTextKeepsSources(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const object = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "
	paths := []string{
		write("a.yaml", object+"a}\ndata:\n  x: |+\n    end\n\n---\n# empty\n---\r\n"+object+"b}\r\n---\n# Source: chart/c.yaml\n"+object+"c}"),
		write("b.json", `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"d"}}]}`), "-",
	}
	objects, text, err := ReadText(paths, strings.NewReader(object+"e}\n"))
	if err == nil {
		var again []Object
		again, err = parse("standard input", text, io.Discard)
		same := func(a, b Object) bool {
			return a.Source == b.Source && reflect.DeepEqual(a.Unstructured, b.Unstructured)
		}
		if !slices.EqualFunc(again, objects, same) {
			t.Errorf("%s\nis read as %v, want %v", text, again, objects)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	want := []string{paths[0], paths[0] + " (document 3)", "chart/c.yaml", paths[1], "standard input"}
	for i, object := range objects {
		if object.Source != want[i] {
			t.Errorf("%s is from %q, want %q", object.Name(), object.Source, want[i])
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"))
	f.Add([]byte("apiVersion: v1\nkind: List\nitems: [1]\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		fuzzbound.Watch(t)
		_, _ = parse("fuzz", content, io.Discard) // must not panic, nor run for ever
	})
}

func TestReadFolder(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"b.yml":        "{apiVersion: v1, kind: Pod, metadata: {name: b}}",
		"a.yaml":       "{apiVersion: v1, kind: Pod, metadata: {name: a}}",
		"c.json":       `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c"}}`,
		"notes.txt":    "not read",
		"below/d.yaml": "not read",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	objects, err := Read([]string{dir}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, object := range objects {
		names = append(names, object.GetName())
	}
	if want := []string{"a", "b", "c"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	if _, err := Read([]string{t.TempDir()}, nil); err == nil || !strings.Contains(err.Error(), "no file *.yaml") {
		t.Errorf("%v of an empty folder", err)
	}
}
