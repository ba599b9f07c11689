package workload

import (
	"strings"
	"testing"
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
			objects, err := Parse("f.yaml", []byte(test.text))
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

func FuzzParse(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"))
	f.Add([]byte("apiVersion: v1\nkind: List\nitems: [1]\n"))
	f.Fuzz(func(_ *testing.T, content []byte) {
		_, _ = Parse("fuzz", content) // must not panic, nor run for ever
	})
}
