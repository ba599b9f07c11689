package workload

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Selection selects the pods whose output is followed. The zero value selects the
// objects that decide the result, or everything if none does.
type Selection struct {
	// given reports that the user selected output, or no output.
	given   bool
	objects []string // KIND/NAME, in lower case
	labels  []labels.Selector
}

// NewSelection returns the Selection of values such as "job/x", "app=web" and
// "none". A pod is selected when one of them fits.
func NewSelection(values []string) (Selection, error) {
	s := Selection{given: len(values) > 0}
	for _, value := range values {
		switch kind, name, isObject := strings.Cut(value, "/"); {
		case value == "none" && len(values) == 1:
		case value == "none":
			return s, fmt.Errorf("follow logs of %q: none excludes all others", values)
		case isObject && !strings.ContainsAny(value, "=,()! "):
			if kind == "" || name == "" {
				return s, fmt.Errorf("follow logs of %q: write KIND/NAME, such as job/main", value)
			}
			s.objects = append(s.objects, strings.ToLower(kind)+"/"+name)
		default:
			selector, err := labels.Parse(value)
			if err != nil {
				return s, fmt.Errorf("follow logs of %q: %w; write KIND/NAME, labels such as app=web, or none", value, err)
			}
			s.labels = append(s.labels, selector)
		}
	}
	return s, nil
}

// includes reports whether the output of a target's pod is followed. It returns
// byDefault if the user selected nothing.
func (s Selection) includes(t *target, pod *corev1.Pod, byDefault bool) bool {
	if !s.given {
		return byDefault
	}
	return s.names(t) || slices.ContainsFunc(s.labels, func(l labels.Selector) bool { return l.Matches(labels.Set(pod.Labels)) })
}

func (s Selection) names(t *target) bool {
	return slices.Contains(s.objects, strings.ToLower(t.object.GetKind())+"/"+t.object.GetName())
}

// plain reports whether exactly one container at a time is followed.
func (s Selection) plain(all []*target) bool {
	if s.given && len(s.labels) == 0 {
		all = slices.DeleteFunc(slices.Clone(all), func(t *target) bool { return !s.names(t) })
	}
	return len(all) == 1 && all[0].single
}

// unknown returns the objects of the selection that are not among the targets.
func (s Selection) unknown(all []*target) []string {
	return slices.DeleteFunc(slices.Clone(s.objects), func(name string) bool {
		return slices.ContainsFunc(all, func(t *target) bool {
			return name == strings.ToLower(t.object.GetKind())+"/"+t.object.GetName()
		})
	})
}
