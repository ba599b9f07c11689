package kinds

import (
	"encoding/json"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// full returns an object whose status has a value in each field, as the API server sends it.
func full(tb testing.TB) (*unstructured.Unstructured, Status) {
	tb.Helper()
	var want Status
	fields := reflect.ValueOf(&want).Elem()
	for i := range fields.NumField() {
		switch field := fields.Field(i); field.Kind() {
		case reflect.String:
			field.SetString("2026-11-28T17:21:03Z")
		case reflect.Int, reflect.Int64:
			field.SetInt(7)
		case reflect.Bool:
			field.SetBool(true)
		case reflect.Pointer:
			field.Set(reflect.New(field.Type().Elem()))
		}
	}
	status, err := json.Marshal(want)
	if err != nil {
		tb.Fatal(err)
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON([]byte(`{"apiVersion": "a/v1", "kind": "SlurmJob", "metadata": {"name": "x"}, "status": ` + string(status) + `}`)); err != nil {
		tb.Fatal(err)
	}
	return object, want
}

func TestStatusOf(t *testing.T) {
	object, want := full(t)
	if got, err := StatusOf(object); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, missing := range []map[string]any{nil, {"status": nil}, {"status": map[string]any{}}, {"status": map[string]any{"exitCode": nil, "later": "x"}}} {
		if got, err := StatusOf(&unstructured.Unstructured{Object: missing}); err != nil || got != (Status{}) {
			t.Errorf("%v: got %+v, %v", missing, got, err)
		}
	}
	for _, wrong := range []any{"x", []any{}, map[string]any{"exitCode": "x"}, map[string]any{"state": int64(1)}} {
		if got, err := StatusOf(&unstructured.Unstructured{Object: map[string]any{"status": wrong}}); err == nil {
			t.Errorf("%v: got %+v", wrong, got)
		}
	}
}

func BenchmarkStatusOf(b *testing.B) {
	object, _ := full(b)
	for b.Loop() {
		if _, err := StatusOf(object); err != nil {
			b.Fatal(err)
		}
	}
}
