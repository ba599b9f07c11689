package netrole

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/network/overlay"
)

// One node that the overlay refuses does not end the network of all others.
func TestRefusedChangeIsSkipped(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for i, name := range []string{"n2", "bad", "n3"} {
		if err := json.NewEncoder(writer).Encode(hostnet.Change{Index: i, Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	writer.Close()
	var made []string
	var log strings.Builder
	err = applyChanges(t.Context(), reader, func(_ int, node overlay.Node) error {
		if node.Name == "bad" {
			return errors.New("no such family")
		}
		made = append(made, node.Name)
		return nil
	}, nil, slog.New(slog.NewTextHandler(&log, nil)))
	if err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("the end of the pipe: %v", err)
	}
	if !slices.Equal(made, []string{"n2", "n3"}) || !strings.Contains(log.String(), "no such family") || !strings.Contains(log.String(), "node=bad") {
		t.Errorf("changes %v, log %s", made, log.String())
	}
}
