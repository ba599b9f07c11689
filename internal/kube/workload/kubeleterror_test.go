package workload

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
)

// kubeletTexts holds an example of each text that the kubelet writes to a log's
// readers, for the container that follow copies.
var kubeletTexts = []string{
	`failed to create fsnotify watcher: too many open files`,
	`failed to watch directory "/var/log/pods/default_p_u/main": no space left on device`,
	`failed to try resolving symlinks in path "/var/log/pods/default_p_u/main/0.log": lstat /var/log/pods/default_p_u/main/0.log: no such file or directory`,
	`failed to open log file "/var/log/pods/default_p_u/main/0.log": open /var/log/pods/default_p_u/main/0.log: permission denied`,
	`failed to read log file "/var/log/pods/default_p_u/main/0.log": read /var/log/pods/default_p_u/main/0.log: input/output error`,
	`unable to retrieve container logs for c`,
}

func TestKubeletErrorsAreNotOutput(t *testing.T) {
	const whole = "one\ntwo\nthree, without an end"
	pods := []map[string]any{knownPod("u", runningStatus("c"))}
	for i, text := range kubeletTexts {
		name, _, _ := strings.Cut(text, `"`)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, before := range []string{"", "one\n", "one\nt"} {
				got, notes := follow(t, &brokenLog{answers: []answer{{before + text, "clean"}, {whole, "ended"}}, pods: pods})
				if got != whole || notes != "" {
					t.Errorf("got %q, notes %q, want %q", got, notes, whole)
				}
			}
			// The text may come when a log is read again from its start.
			got, notes := follow(t, &brokenLog{answers: []answer{{"one\n", "abort"}, {text, "clean"}, {whole, "ended"}}, pods: pods})
			if got != whole || notes != "" {
				t.Errorf("again: got %q, notes %q, want %q", got, notes, whole)
			}
			if kubeletErrors[i].following {
				return
			}
			got, notes = follow(t, &brokenLog{answers: []answer{{"one\n" + text, "ended"}}, pods: pods})
			if got != "one\n" || !strings.Contains(notes, "it cannot be read: the kubelet cannot give the log: "+text) {
				t.Errorf("of a container that has ended: got %q, notes %q", got, notes)
			}
		})
	}
}

// A container's own output passes, even if it looks like the kubelet's.
func TestLinesLikeKubeletErrorsPass(t *testing.T) {
	for _, text := range []string{
		"failed to ",
		"failed to open log file ",
		`failed to open log file "/var/log/app.log": no such file or directory`,
		`failed to read log file "/var/log/pods/default_other_u/main/0.log": input/output error`,
		"unable to retrieve container logs for another",
		kubeletTexts[3] + "\n",
		kubeletTexts[3] + "\nmore",
		kubeletErrors[3].begin + strings.Repeat("x", 2*longestError),
	} {
		got, notes := follow(t, &brokenLog{answers: []answer{{"one\n" + text, "ended"}}, pods: []map[string]any{knownPod("u", runningStatus("c"))}})
		if got != "one\n"+text || notes != "" {
			t.Errorf("got %q, notes %q, want %q", got, notes, text)
		}
	}
	// Where a log is only read, nobody fails to watch it.
	for _, known := range kubeletTexts[:2] {
		r := &kubeletReader{ReadCloser: io.NopCloser(strings.NewReader(known)), stream: testStream()}
		if got, err := io.ReadAll(r); string(got) != known || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	}
}

func testStream() *stream {
	return &stream{namespace: "default", pod: "p", podUID: "u", container: "main", containerID: "c"}
}

// The text may arrive in parts. Text that cannot be the kubelet's is not held
// back.
func TestKubeletErrorsInParts(t *testing.T) {
	for _, text := range kubeletTexts {
		for cut := range len(text) - shortestBegin {
			cut += shortestBegin
			body := io.MultiReader(strings.NewReader("one"), strings.NewReader(text[:cut]), iotest.OneByteReader(strings.NewReader(text[cut:])))
			got, err := io.ReadAll(&kubeletReader{ReadCloser: io.NopCloser(body), stream: testStream(), follow: true})
			if string(got) != "one" || !errors.Is(err, errKubelet) || errors.Is(err, errUnopened) {
				t.Fatalf("cut at %d: got %q, %v", cut, got, err)
			}
		}
	}
	for _, text := range []string{"f", "failed to", "failed to create a file", "failed to open log file\n"} {
		r, w := io.Pipe()
		go func() { _, _ = w.Write([]byte(text)) }()
		got := make([]byte, len(text))
		if _, err := io.ReadFull(&kubeletReader{ReadCloser: r, stream: testStream(), follow: true}, got); string(got) != text || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	}
}

// errorsOf returns the formats of the errors that a function makes.
func errorsOf(t *testing.T, file, function string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, declaration := range parsed.Decls {
		f, ok := declaration.(*ast.FuncDecl)
		if !ok || f.Name.Name != function {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			literal, isText := call.Args[0].(*ast.BasicLit)
			if name, ok := call.Fun.(*ast.SelectorExpr); ok && isText && (name.Sel.Name == "Errorf" || name.Sel.Name == "New") {
				text, _ := strconv.Unquote(literal.Value)
				before, _, _ := strings.Cut(text, "%")
				found = append(found, before)
			}
			return true
		})
	}
	return found
}

func TestKubeletErrors(t *testing.T) {
	kubernetes := moduleDir(t, "k8s.io/kubernetes")
	logs := filepath.Join(moduleDir(t, "k8s.io/cri-client"), "pkg/logs/logs.go")
	source := slices.Concat(errorsOf(t, logs, "ReadLogs"), errorsOf(t, logs, "waitLogs"),
		errorsOf(t, filepath.Join(kubernetes, "pkg/kubelet/kuberuntime/kuberuntime_container.go"), "GetContainerLogs"))
	table := map[string]bool{}
	for _, known := range kubeletErrors {
		table[known.begin] = true
	}
	compare(t, source, table,
		// berth requests no last lines, and a regular file can be positioned.
		"failed to tail ", "failed to seek ", "failed to reset seek in log file ",
		// The file is no log of a runtime.
		"failed to get parse function: ",
		// The client has gone.
		"context cancelled",
	)
	// They get into the stream because the kubelet has begun the answer.
	for file, words := range map[string]string{
		"pkg/kubelet/kubelet_pods.go":  "stdout.Write([]byte{})",
		"pkg/kubelet/server/server.go": "logOptions, stdout, stderr); err != nil {\n\t\tresponse.WriteError(http.StatusBadRequest, err)",
	} {
		content, err := os.ReadFile(filepath.Join(kubernetes, file))
		if err != nil || !strings.Contains(string(content), words) {
			t.Errorf("%s no longer has %q: %v", file, words, err)
		}
	}
}
