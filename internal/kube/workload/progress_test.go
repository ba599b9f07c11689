package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth.dev/berth/internal/kube/containerlog"
)

func TestLogsResumeAfterAnotherProcess(t *testing.T) {
	first := &Progress{}
	first.Apply(Step{Key: "c/Stdout", Mark: offset(len("one\n"))})
	handed := ReadProgress(first.String())
	var out strings.Builder
	s := &stream{logs: newLogs(nil, Streams{Out: &out, Progress: handed}, true), containerID: "c", name: "Stdout"}
	s.earlier = markOf(handed, s.key()).Offset
	copyLog := func(text string) error {
		body := strings.NewReader(text)
		err := s.skip(body)
		if err == nil {
			_, err = io.Copy(s, body)
		}
		return err
	}
	for _, text := range []string{"one\ntwo\n", "one\ntwo\nthree\n"} {
		if err := copyLog(text); err != nil {
			t.Fatal(err)
		}
	}
	if got := out.String(); got != "two\nthree\n" {
		t.Errorf("passed on %q", got)
	}
	if got, want := markOf(handed, "c/Stdout").Offset, int64(len("one\ntwo\nthree\n")); got != want {
		t.Errorf("%d bytes are applied, want %d", got, want)
	}
}

func TestEmptyProgressIsBeginning(t *testing.T) {
	var none *Progress
	none.Apply(Step{Key: "c/Stdout", Mark: offset(3)})
	for _, p := range []*Progress{none, ReadProgress(""), ReadProgress("nonsense"), ReadProgress(none.String())} {
		if got := markOf(p, "c/Stdout").Offset; got != 0 {
			t.Errorf("%d bytes of nothing", got)
		}
	}
}

func offset(bytes int) Mark {
	return Mark{Position: containerlog.Position{Offset: int64(bytes)}}
}

func markOf(p *Progress, key string) Mark {
	mark, _ := p.of(key)
	return mark
}

// uid returns a UID for a number, as random as a UID of the API server.
func uid(n int) string {
	sum := sha256.Sum256(fmt.Append(nil, n))
	text := hex.EncodeToString(sum[:16])
	return strings.Join([]string{text[:8], text[8:12], text[12:16], text[16:20], text[20:]}, "-")
}

// runningContainers returns the marks of as many containers on nodes of 250 pods.
func runningContainers(count int) map[string]Mark {
	marks := map[string]Mark{}
	for n := range count {
		id := uid(n)
		written := int64(1e6 + n*7919%1e6)
		marks[id+"/main"] = Mark{
			Position: containerlog.Position{Segment: time.Unix(1e9, int64(n*7919)*104729).UTC().Format(time.RFC3339Nano), Offset: written * 2},
			logPlace: logPlace{"default", "train-" + id[:5], fmt.Sprintf("node%03d", n/250)},
			SentOut:  written, SentErr: written / 3,
		}
	}
	return marks
}

// The API server refuses an object with too many bytes of annotations.
func TestProgressOf3000ContainersIsAccepted(t *testing.T) {
	running, complete := NewProgress(Followed{Marks: runningContainers(3000)}, nil), NewProgress(Followed{Marks: runningContainers(3000)}, nil)
	for n := range 3000 {
		complete.Apply(Step{Key: uid(n) + "/main", Complete: true})
		complete.Apply(Step{Key: uid(-n), Ended: &Result{}})
	}
	for name, p := range map[string]*Progress{"running": running, "complete": complete} {
		annotation := p.String()
		t.Logf("%s: %d bytes", name, len(annotation))
		if errs := validation.ValidateAnnotations(map[string]string{"berth.dev/note": annotation}, field.NewPath("metadata")); len(errs) > 0 {
			t.Errorf("%s: %d bytes: %v", name, len(annotation), errs)
		}
		got := ReadProgress(annotation)
		if got.String() != annotation || len(got.Followed().Marks) != len(p.Followed().Marks) || len(got.Followed().Complete) != len(p.Followed().Complete) {
			t.Errorf("%s: what is read differs from what was written", name)
		}
	}
}

func TestProgressIsBounded(t *testing.T) {
	p := NewProgress(Followed{Marks: runningContainers(10_000)}, nil)
	for n := range 30_000 {
		p.Apply(Step{Key: uid(-n) + "/main", Complete: true})
	}
	p.Apply(Step{Key: "u/long", Mark: Mark{Out: []byte(strings.Repeat("x", annotatedLines))}})
	p.Apply(Step{Key: "u/short", Mark: Mark{Err: []byte("x")}})
	annotation := p.String()
	if len(annotation) > annotationLimit {
		t.Errorf("%d bytes", len(annotation))
	}
	got := ReadProgress(annotation)
	if _, complete := got.of(uid(-29_999) + "/main"); !complete {
		t.Error("the last complete log is not in the annotation")
	}
	if losses := got.Followed().Losses; losses.Sum.Bytes != annotatedLines {
		t.Errorf("%d bytes of a line count as lost, want %d", losses.Sum.Bytes, annotatedLines)
	}
}

// Losses, the first failure and beginnings of lines go on with the run.
func TestSuccessorKnowsWhatTheHeadKnew(t *testing.T) {
	p := &Progress{}
	p.Apply(Step{Lost: []LostOutput{{Loss: containerlog.Loss{Lines: 2, Bytes: 30}}, {}}})
	p.Apply(Step{Key: "u/main", Mark: Mark{SentOut: 9, Out: []byte("beginning"), Behind: 7}})
	p.Apply(Step{Key: "j1", Ended: &Result{}})
	p.Apply(Step{Key: "j2", Ended: &Result{Code: 3, Reason: "first"}})
	p.Apply(Step{Key: "j3", Ended: &Result{Code: 4, Reason: "second"}})
	got := ReadProgress(p.String()).Followed()
	if lost := got.Losses.String(); lost != "at least 2 lines, 30 bytes" {
		t.Errorf("lost %s", lost)
	}
	if mark := got.Marks["u/main"]; string(mark.Out) != "beginning" || mark.SentOut != 9 || mark.Behind != 0 {
		t.Errorf("mark %+v", mark)
	}
	if got.Result.Code != 3 || got.Result.Reason != "first" || !got.hasEnded("j1") || !got.hasEnded("j3") || got.hasEnded("j4") {
		t.Errorf("result %+v, ended %q", got.Result, got.Ended)
	}
}

// A process sends the beginning of a stream on another way than its end.
func TestLateBeginningChangesNothing(t *testing.T) {
	p := &Progress{}
	p.Apply(Step{Key: "u/main", Mark: offset(5)})
	p.Apply(Step{Key: "u/main", Begun: true})
	if got := markOf(p, "u/main").Offset; got != 5 {
		t.Errorf("%d bytes", got)
	}
	p.Apply(Step{Key: "u/main", Complete: true})
	p.Apply(Step{Key: "u/main", Begun: true})
	if marks := p.Followed().Marks; len(marks) != 0 {
		t.Errorf("marks %v of a complete log", marks)
	}
}
