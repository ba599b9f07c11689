package workload

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// place names where a field of an object was read: FILE:LINE, or the object's
// Source where the line is not known.
func (o Object) place(field string) string {
	if o.line == 0 {
		return o.Source
	}
	line := o.line
	var document yaml.Node
	if yaml.Unmarshal(o.document, &document) == nil && len(document.Content) == 1 {
		line += lineOf(document.Content[0], field) - 1
	}
	return fmt.Sprintf("%s:%d", o.file, line)
}

// lineOf returns the line of a field below a node, or of the nearest node on the
// way to it. Fields are named as in spec.containers[0].image.
func lineOf(node *yaml.Node, field string) int {
	line := node.Line
	for word := range strings.FieldsFuncSeq(field, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		next := (*yaml.Node)(nil)
		if _, err := strconv.Atoi(word); err != nil && node.Kind == yaml.SequenceNode && len(node.Content) == 1 {
			node = node.Content[0] // errors about a wrong type give no number
		}
		switch node.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(node.Content); i += 2 {
				if node.Content[i].Value == word {
					line, next = node.Content[i].Line, node.Content[i+1]
				}
			}
		case yaml.SequenceNode:
			if i, err := strconv.Atoi(word); err == nil && i < len(node.Content) {
				next = node.Content[i]
				line = next.Line
			}
		}
		if next == nil {
			return line
		}
		node = next
	}
	return line
}
