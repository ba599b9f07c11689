package workload

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Object is one object of a manifest, and its place in the file.
type Object struct {
	*unstructured.Unstructured
	// Source is FILE, or FILE (document N) where a file holds several.
	Source string
	// Created is set if Apply created the object.
	Created bool

	// document is the text that the object was read from, and line the number of
	// its first line in the file Source; 0 where that is not known.
	document []byte
	line     int
	// file is the name of the file.
	file string
}

// Name returns "Kind name", for messages.
func (o Object) Name() string {
	name := o.GetName()
	if name == "" {
		name = o.GetGenerateName() + "*"
	}
	return o.GetKind() + " " + name
}

// Read reads the objects of manifest files. "-" is standard input, and a folder
// stands for the files in it that kubectl would read. The error has all problems of
// all files.
func Read(paths []string, stdin io.Reader) ([]Object, error) {
	objects, _, err := ReadText(paths, stdin)
	return objects, err
}

// sourceComment begins a document that comes from another file, and precedes the
// file's name. helm template writes such comments, too.
const sourceComment = "# Source: "

// ReadText works like Read, and also returns the documents unchanged as one text.
// Objects that are read from the text have the same sources.
func ReadText(paths []string, stdin io.Reader) ([]Object, []byte, error) {
	var objects []Object
	var text bytes.Buffer
	var problems []error
	for _, path := range expand(paths, &problems) {
		content, name, err := readFile(path, stdin)
		if err == nil {
			var parsed []Object
			parsed, err = parse(name, content, &text)
			objects = append(objects, parsed...)
		}
		if err != nil {
			problems = append(problems, err)
		}
	}
	return objects, text.Bytes(), errors.Join(problems...)
}

// expand replaces folders by their files, in the order of the names.
func expand(paths []string, problems *[]error) []string {
	var all []string
	for _, path := range paths {
		if info, err := os.Stat(path); path == "-" || err != nil || !info.IsDir() {
			all = append(all, path)
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			*problems = append(*problems, fmt.Errorf("read manifests: %w", err))
			continue
		}
		before := len(all)
		for _, entry := range entries {
			if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(entry.Name())) && !entry.IsDir() {
				all = append(all, filepath.Join(path, entry.Name()))
			}
		}
		if len(all) == before {
			*problems = append(*problems, fmt.Errorf("read manifests: the folder %s has no file *.yaml, *.yml or *.json; it does not search the folders below", path))
		}
	}
	return all
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

// parse reads the objects of one file: YAML documents or JSON, Lists flattened. Empty
// documents are skipped. It copies the documents that hold objects to text.
func parse(name string, content []byte, text io.Writer) ([]Object, error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	read := 0 // bytes of content before the next document
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
		line := 0
		if at := bytes.Index(content[read:], bytes.TrimRight(document, "\n")); at >= 0 {
			read += at
			line = 1 + bytes.Count(content[:read], []byte("\n"))
			read = min(len(content), read+len(document))
		}
		parsed, err := parseDocument(document)
		source := name
		if number > 1 {
			source = fmt.Sprintf("%s (document %d)", name, number)
		}
		body, from := cutSource(document)
		if from != "" {
			source, line = from, 0
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", source, err))
			continue
		}
		for _, object := range parsed {
			objects = append(objects, Object{Unstructured: object, Source: source, file: name, document: document, line: line})
		}
		if len(parsed) > 0 {
			if !bytes.HasSuffix(body, []byte("\n")) {
				body = append(body, '\n')
			}
			fmt.Fprintf(text, "---\n%s%s\n%s", sourceComment, source, body)
		}
	}
	if len(objects) == 0 && len(problems) == 0 {
		problems = append(problems, fmt.Errorf("%s: no Kubernetes object in it", name))
	}
	return objects, errors.Join(problems...)
}

// cutSource removes the separator and the source comment from a document.
func cutSource(document []byte) (body []byte, source string) {
	line, rest, _ := bytes.Cut(document, []byte("\n"))
	if bytes.HasPrefix(line, []byte("---")) {
		document = rest
		line, rest, _ = bytes.Cut(document, []byte("\n"))
	}
	if from, ok := bytes.CutPrefix(line, []byte(sourceComment)); ok {
		return rest, string(bytes.TrimSpace(from))
	}
	return document, ""
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
