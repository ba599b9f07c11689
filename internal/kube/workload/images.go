package workload

// EachImage calls visit for the image of every container that an object
// describes, and replaces the image with the result. It finds pod templates in
// any kind, including kinds that only an operator knows.
func (o Object) EachImage(visit func(image string) string) {
	eachImage(o.Object, visit)
}

func eachImage(value any, visit func(string) string) {
	switch value := value.(type) {
	case map[string]any:
		for key, field := range value {
			if containers, ok := field.([]any); ok && (key == "containers" || key == "initContainers") {
				for _, c := range containers {
					if container, ok := c.(map[string]any); ok {
						if image, ok := container["image"].(string); ok {
							container["image"] = visit(image)
						}
					}
				}
			}
			eachImage(field, visit)
		}
	case []any:
		for _, item := range value {
			eachImage(item, visit)
		}
	}
}
