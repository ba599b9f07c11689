package main

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
)

func TestImportIsRepeatedAfterEndOfContainerd(t *testing.T) {
	ended := fmt.Errorf("bring layer: %w", errdefs.ErrUnavailable)
	corrupt := errors.New("corrupt")
	for _, test := range []struct {
		name   string
		errors []error
		want   error
	}{
		{"no error", []error{nil}, nil},
		{"containerd ended twice", []error{ended, ended, nil}, nil},
		{"a bad archive", []error{corrupt, nil}, corrupt},
		{"containerd ends each time", []error{ended, ended, ended, ended, nil}, ended},
	} {
		var attempts, waits int
		err := repeat(t.Context(), func(context.Context) (bool, error) {
			waits++
			return true, nil
		}, func() error {
			attempts++
			return test.errors[attempts-1]
		})
		if !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
			t.Errorf("%s: error %v, want %v", test.name, err, test.want)
		}
		if waits != attempts-1 {
			t.Errorf("%s: %d waits for containerd, want one between two of %d attempts", test.name, waits, attempts)
		}
	}
}

func TestImportEndsWithoutContainerd(t *testing.T) {
	attempts := 0
	err := repeat(t.Context(), func(context.Context) (bool, error) {
		return false, context.DeadlineExceeded
	}, func() error {
		attempts++
		return errdefs.ErrUnavailable
	})
	if attempts != 1 || !errdefs.IsUnavailable(err) {
		t.Errorf("%d attempts, error %v; want one, and its error", attempts, err)
	}
}
