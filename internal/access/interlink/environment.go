package interlink

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// environment replaces references to foreign objects in the environment of a container.
// interLink replaces most of them by values before it sends the pod. The others work if
// their object was sent with a volume. Otherwise optional references are omitted, and
// environment returns an error for others.
func (c *contents) environment(foreign *corev1.Pod, container *corev1.Container) error {
	if len(container.Resources.Claims) > 0 {
		return fmt.Errorf("resources.claims: the claim %q exists only in the other cluster", container.Resources.Claims[0].Name)
	}
	absent := map[string]bool{}
	for i := range container.Env {
		variable := &container.Env[i]
		from := variable.ValueFrom
		if from == nil {
			continue
		}
		ok, kind, name, isOptional := true, "", "", false
		switch {
		case from.FieldRef != nil:
			identity(foreign, variable)
		case from.ConfigMapKeyRef != nil:
			kind, name, isOptional = "ConfigMap", from.ConfigMapKeyRef.Name, optional(from.ConfigMapKeyRef.Optional)
			from.ConfigMapKeyRef.Name, ok = c.configMap(name)
		case from.SecretKeyRef != nil:
			kind, name, isOptional = "Secret", from.SecretKeyRef.Name, optional(from.SecretKeyRef.Optional)
			from.SecretKeyRef.Name, ok = c.secret(name)
		}
		switch {
		case ok:
		case isOptional:
			absent[variable.Name] = true
		default:
			return fmt.Errorf("env %s: the request has neither a value nor the %s %q", variable.Name, kind, name)
		}
	}
	container.Env = slices.DeleteFunc(container.Env, func(variable corev1.EnvVar) bool { return variable.ValueFrom != nil && absent[variable.Name] })
	var sources []corev1.EnvFromSource
	for _, source := range container.EnvFrom {
		ok, kind, name, isOptional := true, "", "", false
		switch {
		case source.ConfigMapRef != nil:
			kind, name, isOptional = "ConfigMap", source.ConfigMapRef.Name, optional(source.ConfigMapRef.Optional)
			source.ConfigMapRef.Name, ok = c.configMap(name)
		case source.SecretRef != nil:
			kind, name, isOptional = "Secret", source.SecretRef.Name, optional(source.SecretRef.Optional)
			source.SecretRef.Name, ok = c.secret(name)
		}
		switch {
		case ok:
			sources = append(sources, source)
		case !isOptional:
			return fmt.Errorf("envFrom: the request has neither the values nor the %s %q", kind, name)
		}
	}
	container.EnvFrom = sources
	return nil
}

// identity sets a variable to a field of the foreign pod that identifies it. Variables with
// other fields keep their reference.
func identity(foreign *corev1.Pod, variable *corev1.EnvVar) {
	switch variable.ValueFrom.FieldRef.FieldPath {
	case "metadata.name":
		variable.Value = foreign.Name
	case "metadata.namespace":
		variable.Value = foreign.Namespace
	case "metadata.uid":
		variable.Value = string(foreign.UID)
	case "spec.serviceAccountName":
		variable.Value = foreign.Spec.ServiceAccountName
	default:
		return
	}
	variable.ValueFrom = nil
}
