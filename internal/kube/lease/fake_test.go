package lease

import (
	"context"
	"errors"
	"io"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/dynamic"
)

// conflicting refuses every update with a conflict.
type conflicting struct{ dynamic.ResourceInterface }

func (conflicting) Update(context.Context, *unstructured.Unstructured, metav1.UpdateOptions, ...string) (*unstructured.Unstructured, error) {
	return nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, leaseName, errors.New("it has changed"))
}

// strict refuses annotations that are too long, as an API server does.
type strict struct {
	dynamic.ResourceInterface
	// accepted counts the updates that it has not refused.
	accepted atomic.Int32
}

func (s *strict) Update(ctx context.Context, lease *unstructured.Unstructured, options metav1.UpdateOptions, _ ...string) (*unstructured.Unstructured, error) {
	if errs := validation.ValidateAnnotations(lease.GetAnnotations(), field.NewPath("metadata", "annotations")); len(errs) > 0 {
		return nil, apierrors.NewInvalid(lease.GroupVersionKind().GroupKind(), leaseName, errs)
	}
	s.accepted.Add(1)
	return s.ResourceInterface.Update(ctx, lease, options)
}

// silent never answers an update.
type silent struct{ dynamic.ResourceInterface }

func (silent) Update(ctx context.Context, _ *unstructured.Unstructured, _ metav1.UpdateOptions, _ ...string) (*unstructured.Unstructured, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// slow answers the first update when another one has begun, which it does not answer.
type slow struct {
	dynamic.ResourceInterface
	begun, answered atomic.Bool
	another         chan struct{}
}

func (s *slow) Update(ctx context.Context, lease *unstructured.Unstructured, options metav1.UpdateOptions, _ ...string) (*unstructured.Unstructured, error) {
	switch {
	case s.answered.Load():
	case s.begun.Swap(true):
		close(s.another)
		<-ctx.Done()
	default:
		select {
		case <-s.another:
			s.answered.Store(true)
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return s.ResourceInterface.Update(ctx, lease, options)
}

// late writes the lease at the first update, but its answer comes too late.
type late struct {
	dynamic.ResourceInterface
	written time.Time
	// outage is the time from that answer until the lease can be read again.
	outage time.Duration
}

func (l *late) Update(ctx context.Context, lease *unstructured.Unstructured, options metav1.UpdateOptions, _ ...string) (*unstructured.Unstructured, error) {
	version, _ := strconv.Atoi(lease.GetResourceVersion())
	lease.SetResourceVersion(strconv.Itoa(version + 1))
	written, err := l.ResourceInterface.Update(ctx, lease, options)
	if l.written.IsZero() {
		l.written = time.Now()
		<-ctx.Done()
		time.Sleep(l.outage)
		return nil, ctx.Err()
	}
	return written, err
}

// slowCreate takes a time to answer the creation of the lease.
type slowCreate struct {
	dynamic.ResourceInterface
	takes time.Duration
}

func (s slowCreate) Create(ctx context.Context, lease *unstructured.Unstructured, options metav1.CreateOptions, _ ...string) (*unstructured.Unstructured, error) {
	time.Sleep(s.takes)
	return s.ResourceInterface.Create(ctx, lease, options)
}

// conflictingOnce refuses the first update with a conflict.
type conflictingOnce struct {
	dynamic.ResourceInterface
	updates int
}

func (c *conflictingOnce) Update(ctx context.Context, lease *unstructured.Unstructured, options metav1.UpdateOptions, _ ...string) (*unstructured.Unstructured, error) {
	if c.updates++; c.updates == 1 {
		return conflicting{}.Update(ctx, lease, options)
	}
	return c.ResourceInterface.Update(ctx, lease, options)
}

// taken refuses updates with a conflict: node n2 holds the lease.
type taken struct{ dynamic.ResourceInterface }

func (taken) Update(ctx context.Context, lease *unstructured.Unstructured, options metav1.UpdateOptions, _ ...string) (*unstructured.Unstructured, error) {
	return conflicting{}.Update(ctx, lease, options)
}

func (t taken) Get(ctx context.Context, name string, options metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	lease, err := t.ResourceInterface.Get(ctx, name, options)
	if err == nil {
		err = unstructured.SetNestedField(lease.Object, "n2", "spec", "holderIdentity")
	}
	return lease, err
}

// versioned refuses updates of a lease that has changed, as an API server does.
type versioned struct {
	dynamic.ResourceInterface
	mu      sync.Mutex
	version int
}

func (v *versioned) Update(ctx context.Context, lease *unstructured.Unstructured, options metav1.UpdateOptions, _ ...string) (*unstructured.Unstructured, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if read, _ := strconv.Atoi(lease.GetResourceVersion()); read != v.version {
		return conflicting{}.Update(ctx, lease, options)
	}
	v.version++
	written := lease.DeepCopy()
	written.SetResourceVersion(strconv.Itoa(v.version))
	return v.ResourceInterface.Update(ctx, written, options)
}

// stopping is a client whose process is stopped until a time. Then its second request
// to read ends.
type stopping struct {
	dynamic.ResourceInterface
	until time.Time
	reads int
}

func (s *stopping) Get(ctx context.Context, name string, options metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	if s.reads++; s.reads == 2 {
		time.Sleep(time.Until(s.until))
	}
	return s.ResourceInterface.Get(ctx, name, options)
}

// unanswered answers reads late, and the first update not at all.
type unanswered struct {
	dynamic.ResourceInterface
	takes   time.Duration
	updates int
}

func (u *unanswered) Get(ctx context.Context, name string, options metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	time.Sleep(u.takes)
	return u.ResourceInterface.Get(ctx, name, options)
}

func (u *unanswered) Update(ctx context.Context, lease *unstructured.Unstructured, options metav1.UpdateOptions, _ ...string) (*unstructured.Unstructured, error) {
	if u.updates++; u.updates == 1 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return u.ResourceInterface.Update(ctx, lease, options)
}

// closing creates the lease, or not, and closes the connection instead of an answer. It does so
// twice.
type closing struct {
	dynamic.ResourceInterface
	creates bool
	calls   int
}

func (c *closing) Create(ctx context.Context, lease *unstructured.Unstructured, options metav1.CreateOptions, _ ...string) (*unstructured.Unstructured, error) {
	if c.calls++; c.calls > 2 {
		return c.ResourceInterface.Create(ctx, lease, options)
	}
	if c.creates {
		_, _ = c.ResourceInterface.Create(ctx, lease, options)
	}
	return nil, &url.Error{Op: "Post", URL: "https://127.0.0.1:6443", Err: io.EOF}
}
