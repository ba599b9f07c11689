package usage

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/metrics/pkg/apis/metrics"
)

// table formats measurements for kubectl get.
type table struct{}

// ConvertToTable implements rest.TableConvertor.
func (table) ConvertToTable(_ context.Context, object, _ runtime.Object) (*metav1.Table, error) {
	t := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name"},
		{Name: "CPU", Type: "string", Format: "quantity"},
		{Name: "Memory", Type: "string", Format: "quantity"},
		{Name: "Window", Type: "string", Format: "duration"},
	}}
	row := func(o runtime.Object, name string, over time.Duration, usage corev1.ResourceList) {
		t.Rows = append(t.Rows, metav1.TableRow{
			Cells:  []any{name, usage.Cpu().String(), usage.Memory().String(), over.Round(time.Millisecond).String()},
			Object: runtime.RawExtension{Object: o},
		})
	}
	pod := func(p *metrics.PodMetrics) {
		sum := corev1.ResourceList{}
		for _, c := range p.Containers {
			for name, quantity := range c.Usage {
				quantity.Add(sum[name])
				sum[name] = quantity
			}
		}
		row(p, p.Name, p.Window.Duration, sum)
	}
	node := func(n *metrics.NodeMetrics) { row(n, n.Name, n.Window.Duration, n.Usage) }
	switch o := object.(type) {
	case *metrics.PodMetrics:
		pod(o)
	case *metrics.PodMetricsList:
		for i := range o.Items {
			pod(&o.Items[i])
		}
	case *metrics.NodeMetrics:
		node(o)
	case *metrics.NodeMetricsList:
		for i := range o.Items {
			node(&o.Items[i])
		}
	}
	return t, nil
}
