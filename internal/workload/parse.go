package workload

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Object is one object of a manifest, and where it was read.
type Object struct {
	*unstructured.Unstructured
	// Source is FILE, or FILE (document N) where a file holds several.
	Source string
}

// Name is "Kind name", for messages.
func (o Object) Name() string {
	name := o.GetName()
	if name == "" {
		name = o.GetGenerateName() + "*"
	}
	return o.GetKind() + " " + name
}

// Read reads the objects of manifest files; "-" is stdin. All problems of all
// files are reported together.
func Read(paths []string, stdin io.Reader) ([]Object, error) {
	var objects []Object
	var problems []error
	for _, path := range paths {
		content, name, err := readFile(path, stdin)
		if err == nil {
			var parsed []Object
			parsed, err = Parse(name, content)
			objects = append(objects, parsed...)
		}
		if err != nil {
			problems = append(problems, err)
		}
	}
	return objects, errors.Join(problems...)
}

func readFile(path string, stdin io.Reader) (content []byte, name string, err error) {
	if path == "-" {
		content, err = io.ReadAll(stdin)
		return content, "standard input", err
	}
	content, err = os.ReadFile(path)
	if err != nil {
		err = fmt.Errorf("read manifest: %w", err)
	}
	return content, path, err
}

// Parse reads the objects of one file: YAML documents or JSON, Lists
// flattened. Empty documents are skipped.
func Parse(name string, content []byte) ([]Object, error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	var objects []Object
	var problems []error
	for number := 1; ; number++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
			break
		}
		parsed, err := parseDocument(document)
		source := name
		if number > 1 {
			source = fmt.Sprintf("%s (document %d)", name, number)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", source, err))
			continue
		}
		for _, object := range parsed {
			objects = append(objects, Object{Unstructured: object, Source: source})
		}
	}
	if len(objects) == 0 && len(problems) == 0 {
		problems = append(problems, fmt.Errorf("%s: no Kubernetes object in it", name))
	}
	return objects, errors.Join(problems...)
}

func parseDocument(document []byte) ([]*unstructured.Unstructured, error) {
	var fields map[string]any
	if err := yaml.UnmarshalStrict(document, &fields); err != nil { // no key twice
		return nil, fmt.Errorf("not valid YAML: %w", err)
	}
	if len(fields) == 0 {
		return nil, nil
	}
	object := &unstructured.Unstructured{Object: fields}
	if object.GetAPIVersion() == "" || object.GetKind() == "" {
		return nil, errors.New("not a Kubernetes object: apiVersion or kind is missing")
	}
	if object.IsList() {
		return flatten(object)
	}
	if object.GetName() == "" && object.GetGenerateName() == "" {
		return nil, fmt.Errorf("%s without metadata.name", object.GetKind())
	}
	return []*unstructured.Unstructured{object}, nil
}

func flatten(list *unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	err := list.EachListItem(func(item apiObject) error {
		encoded, err := yaml.Marshal(item)
		if err != nil {
			return err
		}
		parsed, err := parseDocument(encoded)
		objects = append(objects, parsed...)
		return err
	})
	return objects, err
}
