package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
)

// kubernetesMinor is the version of the API server, as in v1.36. The modules of
// berth's client have the same.
const kubernetesMinor = 36

// Check returns all errors in objects that a client can find without a cluster: fields and kinds that do not exist, values of a wrong type, versions
// that are no longer served, controllers that would not find their pods.
// Kinds that are not Kubernetes' own are not checked.
func Check(objects []Object) error {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var problems []error
	for _, object := range objects {
		typed, faults := decode(decoder, object)
		if typed != nil {
			faults = append(faults, checkValues(object, typed)...)
		}
		for _, f := range faults {
			problems = append(problems, fmt.Errorf("%s: %s: %s", object.place(f.field), object.Name(), f.text))
		}
	}
	return errors.Join(problems...)
}

// fault is something wrong in an object, at a field if it is known.
type fault struct{ field, text string }

var (
	unknownField = regexp.MustCompile(`^unknown field "(.*)"$`)                                                    //nolint:gochecknoglobals // a constant
	wrongType    = regexp.MustCompile(`json: cannot unmarshal (.+) into Go struct field \w+\.(\S+) of type (\S+)`) //nolint:gochecknoglobals // a constant
)

// decode returns the object as the type of its kind; nil for a kind that is not
// Kubernetes' own, and for an object that cannot be read.
func decode(decoder runtime.Decoder, object Object) (runtime.Object, []fault) {
	encoded, err := json.Marshal(object.Object)
	if err != nil {
		return nil, []fault{{"", err.Error()}}
	}
	typed, kind, err := decoder.Decode(encoded, nil, nil)
	if err == nil {
		return typed, removed(typed, *kind)
	}
	if runtime.IsNotRegisteredError(err) {
		return nil, unknownKind(object.GroupVersionKind())
	}
	if strict, ok := runtime.AsStrictDecodingError(err); ok {
		var faults []fault
		for _, err := range strict.Errors() {
			f := fault{"", err.Error()}
			if found := unknownField.FindStringSubmatch(f.text); found != nil {
				f.field = found[1]
			}
			faults = append(faults, f)
		}
		return nil, faults
	}
	if found := wrongType.FindStringSubmatch(err.Error()); found != nil {
		return nil, []fault{{found[2], fmt.Sprintf("field %q must be %s, not %s", found[2], typeName(found[3]), valueName(found[1]))}}
	}
	return nil, []fault{{"", err.Error()}}
}

// typeName returns the user's word for a Go type.
func typeName(name string) string {
	switch {
	case strings.HasPrefix(name, "[]"):
		return "a list"
	case strings.HasPrefix(name, "map["):
		return "a list of 'name: value'"
	case strings.HasPrefix(name, "int"), strings.HasPrefix(name, "uint"):
		return "a whole number"
	case name == "bool":
		return "true or false"
	case name == "string":
		return "a text (in quotes where it looks like a number)"
	}
	return "an object"
}

// valueName returns the user's word for a kind of JSON value.
func valueName(name string) string {
	switch name {
	case "array":
		return "a list"
	case "object":
		return "an object"
	case "bool":
		return "true or false"
	case "string":
		return "a text"
	}
	return "a " + name
}

// unknownKind returns the fault of an unknown kind in a group of Kubernetes, or none for
// other groups.
func unknownKind(kind schema.GroupVersionKind) []fault {
	if !scheme.Scheme.IsGroupRegistered(kind.Group) {
		return nil
	}
	text := fmt.Sprintf("%s has no kind %s", kind.GroupVersion(), kind.Kind)
	for _, version := range scheme.Scheme.PrioritizedVersionsAllGroups() {
		if scheme.Scheme.Recognizes(version.WithKind(kind.Kind)) {
			return []fault{{"apiVersion", fmt.Sprintf("%s; it is in %s", text, version)}}
		}
	}
	return []fault{{"kind", text}}
}

// removed returns the fault of a kind in a version that the API server no longer
// serves.
func removed(typed runtime.Object, kind schema.GroupVersionKind) []fault {
	gone, ok := typed.(interface{ APILifecycleRemoved() (major, minor int) })
	if !ok {
		return nil
	}
	major, minor := gone.APILifecycleRemoved()
	if major != 1 || minor > kubernetesMinor {
		return nil
	}
	text := fmt.Sprintf("%s of %s was removed in Kubernetes 1.%d", kind.Kind, kind.GroupVersion(), minor)
	if replaced, ok := typed.(interface {
		APILifecycleReplacement() schema.GroupVersionKind
	}); ok {
		text += "; it is in " + replaced.APILifecycleReplacement().GroupVersion().String()
	}
	return []fault{{"apiVersion", text}}
}

// checkValues returns the faults in the values of a decoded object that every API server
// refuses.
func checkValues(object Object, typed runtime.Object) []fault {
	metadata := field.NewPath("metadata")
	problems := metav1validation.ValidateLabels(object.GetLabels(), metadata.Child("labels"))
	for _, text := range path.IsValidPathSegmentName(object.GetName()) {
		problems = append(problems, field.Invalid(metadata.Child("name"), object.GetName(), text))
	}
	problems = append(problems, checkPods(typed)...)
	var faults []fault
	for _, problem := range problems {
		faults = append(faults, fault{problem.Field, problem.Error()})
	}
	return faults
}
