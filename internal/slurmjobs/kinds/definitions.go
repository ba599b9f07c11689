package kinds

import (
	"embed"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

//go:embed crds
var definitions embed.FS

// statusMarker stands, in the definition of each kind, for the fields of crds/status.txt, which
// all kinds share.
const statusMarker = "#STATUS"

// DefinitionsYAML returns the CustomResourceDefinitions of the three kinds, in YAML.
func DefinitionsYAML() (string, error) {
	shared, err := definitions.ReadFile("crds/status.txt")
	if err != nil {
		return "", err
	}
	var documents []string
	for _, kind := range All() {
		text, err := definitions.ReadFile("crds/" + kind.Plural + ".yaml")
		if err != nil {
			return "", err
		}
		var lines []string
		for line := range strings.Lines(string(text)) {
			indent, found := strings.CutSuffix(strings.TrimRight(line, "\n"), statusMarker)
			if !found {
				lines = append(lines, line)
				continue
			}
			for added := range strings.Lines(string(shared)) {
				lines = append(lines, indent+added)
			}
		}
		documents = append(documents, strings.Join(lines, ""))
	}
	return strings.Join(documents, "---\n"), nil
}

// Definitions returns the CustomResourceDefinitions of the three kinds.
func Definitions() ([]*unstructured.Unstructured, error) {
	text, err := DefinitionsYAML()
	if err != nil {
		return nil, err
	}
	var all []*unstructured.Unstructured
	for document := range strings.SplitSeq(text, "---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			return nil, fmt.Errorf("read a definition: %w", err)
		}
		all = append(all, object)
	}
	return all, nil
}
