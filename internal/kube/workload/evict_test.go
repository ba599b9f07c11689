package workload

import (
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// A budget keeps a pod for half of the time of a node that leaves. The pod has one Event about that,
// and is deleted then.
func TestDrainNodeHeedsBudgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		budget := object("PodDisruptionBudget", "default", "guard", nil)
		budget.SetAPIVersion("policy/v1")
		api := newDrainClient(budget,
			pod("kept", "n2-57", "Running", 30), pod("twice", "n2-57", "Running", 30), pod("free", "n2-57", "Running", 30), pod("elsewhere", "n1", "Running", 30))
		var events []string
		deleted := map[string]time.Duration{}
		end := func(name string) {
			deleted[name] = time.Since(began)
			if err := api.Tracker().Delete(podResource, "default", name); err != nil {
				t.Error(err)
			}
		}
		api.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
			create := action.(clienttesting.CreateAction)
			object := create.GetObject().(*unstructured.Unstructured)
			switch {
			case create.GetResource() == eventResource:
				message, _, _ := unstructured.NestedString(object.Object, "message")
				events = append(events, message)
			case create.GetSubresource() != "eviction":
				t.Errorf("created %v", object)
			case object.GetName() == "kept":
				err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 10)
				err.ErrStatus.Code = http.StatusTooManyRequests
				err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: "DisruptionBudget", Message: "The disruption budget guard needs 1 healthy pods and has 1 currently"}}
				return true, nil, err
			case object.GetName() == "twice":
				return true, nil, apierrors.NewInternalError(errors.New("two budgets"))
			default:
				end(object.GetName())
			}
			return true, object, nil
		})
		api.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			end(action.(clienttesting.DeleteAction).GetName())
			return true, nil, nil
		})
		drained, err := (&Client{dynamic: api}).DrainNode(t.Context(), slog.New(slog.DiscardHandler), "n2-57", time.Minute)
		if err != nil || drained != (Drained{Asked: 2, Ended: 2}) {
			t.Errorf("%+v, %v", drained, err)
		}
		if len(deleted) != 3 || deleted["free"] != 0 || deleted["kept"].Round(2*time.Second) != 30*time.Second ||
			deleted["twice"].Round(2*time.Second) != 30*time.Second {
			t.Errorf("the pods ended after %v", deleted)
		}
		start := "its node leaves, and the pod ends at " + began.Add(30*time.Second).Format("15:04:05") + " in any case: "
		want := []string{
			start + "Internal error occurred: two budgets",
			start + "The disruption budget guard needs 1 healthy pods and has 1 currently",
		}
		slices.Sort(events)
		if !slices.Equal(events, want) {
			t.Errorf("events %q, want %q", events, want)
		}
	})
}
