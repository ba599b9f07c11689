package launch

import (
	"context"
	"errors"
	"slices"
	"testing"
)

func TestStepsAreUnwoundInReverse(t *testing.T) {
	var got []string
	note := func(word string) func(context.Context) error {
		return func(context.Context) error { got = append(got, word); return nil }
	}
	undo := func(word string) func() error {
		return func() error { got = append(got, "undo "+word); return errors.New(word) }
	}
	s := steps{list: []step{
		{name: "first", do: note("first"), stop: func() { got = append(got, "stop first") }, undo: undo("first")},
		{name: "second", do: note("second"), stop: func() { got = append(got, "stop second") }},
		{name: "third", do: func(context.Context) error { return errors.New("third fails") }, undo: undo("third")},
		{name: "fourth", do: note("fourth"), undo: undo("fourth")},
	}}
	var reported []string
	if err := s.run(t.Context(), func(name string) { reported = append(reported, name) }); err == nil || err.Error() != "third fails" {
		t.Errorf("the steps end with %v", err)
	}
	if err := s.unwind(); err == nil || err.Error() != "third\nfirst" {
		t.Errorf("errors %v, want those of all steps", err)
	}
	// The step that failed is undone, too, and no step that has not begun.
	if want := []string{"first", "second", "stop second", "stop first", "undo third", "undo first"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if !slices.Equal(reported, []string{"first", "second"}) {
		t.Errorf("reported %q", reported)
	}
}

func TestNothingToUnwind(t *testing.T) {
	if err := new(steps).unwind(); err != nil {
		t.Error(err)
	}
}
