package budget

import (
	"archive/tar"
	"errors"
	"io"
	"math"
	"strings"
	"sync/atomic"
	"testing"
)

// usual counts a layer of files of one size, as a reader does.
func usual(l *Layer, files int, size int64) error {
	name := strings.Repeat("n", 80)
	for range files {
		if err := l.Entry(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: size}); err != nil {
			return err
		}
		for range strings.Count("usr/lib/python3/site-packages/package/module", "/") {
			if err := l.Step(); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestUsualLayersFit(t *testing.T) {
	for name, c := range map[string]struct {
		packed int64
		files  int
		size   int64
	}{
		"two million small files": {500 << 20, 2_000_000, 1 << 10},
		"100 GB":                  {40 << 30, 100_000, 1 << 20},
		"a thousand empty files":  {20_000, 1000, 0},
		"4 million files":         {4 << 30, 4 << 20, 4 << 10},
		"a gigabyte of zeros":     {1 << 20, 1, 1 << 30},
	} {
		if err := usual(Budget{}.Layer(c.packed), c.files, c.size); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOptionRaisesLimits(t *testing.T) {
	var twice Budget
	if err := twice.Set("2"); err != nil {
		t.Fatal(err)
	}
	for name, exceed := range map[string]func(Budget) error{
		"files":   func(b Budget) error { return b.CheckFiles(files + 1) },
		"layers":  func(b Budget) error { return b.CheckLayers(layers + 1) },
		"text":    func(b Budget) error { return b.CheckTextSize(text + 1) },
		"values":  func(b Budget) error { return b.CheckText([]byte(strings.Repeat(",", values+1))) },
		"texts":   func(b Budget) error { l := b.Layer(0); l.texts = texts; return l.Text([]byte("{}")) },
		"kept":    func(b Budget) error { return b.Layer(0).Keep(leastKept + 1) },
		"content": func(b Budget) error { return b.Layer(0).Content(leastContent + 1) },
		"steps":   func(b Budget) error { l := b.Layer(0); l.steps = steps; return l.Step() },
		"window":  func(b Budget) error { return windowError(b.Layer(0)) },
	} {
		if err := exceed(Budget{}); !errors.Is(err, ErrExceeded) || !strings.Contains(err.Error(), "--image-budget 2") {
			t.Errorf("%s: %v", name, err)
		}
		if err := exceed(twice); err != nil {
			t.Errorf("%s, twice: %v", name, err)
		}
	}
	for _, wrong := range []string{"", "0", "-1", "1001", "many"} {
		if err := twice.Set(wrong); err == nil {
			t.Errorf("%q times the limits are taken", wrong)
		}
	}
}

func windowError(l *Layer) error {
	if l.Window() > leastWindow {
		return nil
	}
	return l.ExceededWindow()
}

// The limits grow with the packed bytes that have come, whatever their size is said to be.
func TestLimitsGrowWithPackedBytes(t *testing.T) {
	l := Budget{}.Stream(1 << 40)
	if _, err := l.Packed(strings.NewReader(strings.Repeat("p", 8<<20))).Read(make([]byte, 8<<20)); err != nil {
		t.Fatal(err)
	}
	if err := l.Keep(8 * 8 << 20); err != nil {
		t.Error(err)
	}
	if err := l.Keep(1); !errors.Is(err, ErrExceeded) {
		t.Errorf("a byte more: %v", err)
	}
}

// Of a stream, the content of a file counts as it comes, because little has come when its
// header is read.
func TestLargeFirstFileOfStream(t *testing.T) {
	large := tar.Header{Name: "weights", Typeflag: tar.TypeReg, Size: 2 * leastContent}
	l := Budget{}.Stream(2 * leastContent)
	if err := l.Entry(&large); err != nil {
		t.Error(err)
	}
	if err := (Budget{}).Layer(1).Entry(&large); !errors.Is(err, ErrExceeded) {
		t.Errorf("in a small file: %v", err)
	}
	large.PAXRecords = map[string]string{"GNU.sparse.realsize": "8589934592"}
	if err := l.Entry(&large); !errors.Is(err, ErrExceeded) {
		t.Errorf("as a sparse file: %v", err)
	}
}

// The window of a stream depends on the size of the layer, not on the few bytes
// that have come.
func TestWindowOfStream(t *testing.T) {
	if got := (Budget{}).Stream(1 << 30).Window(); got != mostWindow {
		t.Errorf("%d bytes, want %d", got, mostWindow)
	}
}

func TestErrorNamesMultipleThatContentNeeds(t *testing.T) {
	if err := (Budget{}).Layer(1).Content(5*leastContent - 1); err == nil || !strings.Contains(err.Error(), "--image-budget 5") {
		t.Error(err)
	}
}

// Layers that fit one by one do not fit together. Each is small, so their packed sizes
// raise no limit.
func TestLayersOfAnImageCountTogether(t *testing.T) {
	for name, use := range map[string]func(*Layer) error{
		"files":   func(l *Layer) error { l.image.files.Add(files / 2); return l.Entry(&tar.Header{Name: "a"}) },
		"kept":    func(l *Layer) error { return l.Keep(leastKept/2 + 1) },
		"content": func(l *Layer) error { return l.Content(leastContent/2 + 1) },
		"read":    func(l *Layer) error { return l.unpacked(&l.read, &l.image.read, leastContent/2+1) },
		"headers": func(l *Layer) error { return l.headers(leastHeaders/2 + 1) },
		"steps":   func(l *Layer) error { l.image.steps.Add(steps / 2); return l.Step() },
	} {
		image := &Image{}
		if err := use(Budget{}.Layer(1).Of(image)); err != nil {
			t.Errorf("%s, one layer: %v", name, err)
		}
		err := use(Budget{}.Stream(1 << 40).Of(image))
		if !errors.Is(err, ErrExceeded) || !strings.Contains(err.Error(), "all layers of the image") || !strings.Contains(err.Error(), "--image-budget 2") {
			t.Errorf("%s, two layers: %v", name, err)
		}
		var twice Budget
		if err := errors.Join(twice.Set("2"), use(twice.Layer(1).Of(image))); err != nil {
			t.Errorf("%s, three layers, twice: %v", name, err)
		}
		if err := use(Budget{}.Layer(1)); err != nil {
			t.Errorf("%s, a layer of another image: %v", name, err)
		}
	}
}

// A layer that is read again does not count twice.
func TestDroppedLayersDoNotCount(t *testing.T) {
	image := &Image{}
	large := tar.Header{Name: strings.Repeat("n", path), Typeflag: tar.TypeReg, Size: 1 << 30}
	for name, l := range map[string]*Layer{"layer": Budget{}.Layer(1 << 20), "stream": Budget{}.Stream(1 << 20), "table": Budget{}.Table(1, 1<<20)} {
		l.Of(image)
		var from io.Reader = strings.NewReader(strings.Repeat("p", 1<<20))
		if name == "stream" {
			from = l.Packed(from)
		}
		if _, err := io.Copy(io.Discard, l.Reader(l.Archive(from))); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(l.Entry(&large), l.Step(), l.Keep(1<<20), l.Content(1<<20)); err != nil {
			t.Fatal(err)
		}
		// What exceeds the limits of the layer counts for neither.
		longer := large
		longer.Name += "n"
		for _, err := range []error{l.Entry(&longer), l.Keep(mostKept + 1), l.Content(mostContent), l.headers(mostHeaders + 1<<30)} {
			if !errors.Is(err, ErrExceeded) {
				t.Errorf("%s: %v", name, err)
			}
		}
		l.Drop()
		l.Drop()
		for sum, of := range map[string]*atomic.Int64{
			"packed": &image.packed, "keepable": &image.keepable, "files": &image.files, "kept": &image.kept,
			"content": &image.content, "read": &image.read, "steps": &image.steps, "headed": &image.headed,
		} {
			if n := of.Load(); n != 0 {
				t.Errorf("%s: %s is %d", name, sum, n)
			}
		}
	}
}

// The size that a header states leaves no room for more headers in other layers.
func TestStatedContentIsNotCounted(t *testing.T) {
	image := &Image{}
	for range 2 { // the sum of these sizes overflows
		if err := (Budget{}).Stream(1 << 50).Of(image).Entry(&tar.Header{Typeflag: tar.TypeReg, Size: math.MaxInt64}); err != nil {
			t.Fatal(err)
		}
		half := Budget{}.Layer(1).Of(image)
		if err := half.headers(leastHeaders / 2); err != nil {
			t.Error(err)
		}
	}
	if err := (Budget{}).Layer(1).Of(image).headers(1); !errors.Is(err, ErrExceeded) {
		t.Errorf("a byte more: %v", err)
	}
}

func TestUsualImagesFit(t *testing.T) {
	for name, c := range map[string]struct {
		layers int
		packed int64
		files  int
		size   int64
	}{
		"500 layers of 10 MB":        {500, 10 << 20, 3000, 20 << 10},
		"127 layers of one file":     {127, 300, 1, 100},
		"40 layers, 2 million files": {40, 12 << 20, 50_000, 1 << 10},
		"ten layers of 40 GB":        {10, 20 << 30, 1000, 40 << 20},
		"lastlog in ten layers":      {10, 1 << 20, 1, 400 << 20},
	} {
		image := &Image{}
		for range c.layers {
			if err := usual(Budget{}.Layer(c.packed).Of(image), c.files, c.size); err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
		}
	}
}

// Calls with the same name count for one image, and the oldest name is forgotten.
func TestImagesAreFoundByName(t *testing.T) {
	var all Images
	first := all.Of("0")
	if all.Of("0") != first || all.Of("1") == first {
		t.Error("names and images do not correspond")
	}
	for i := range mostImages {
		all.Of(strings.Repeat("n", i+1))
	}
	if all.Of("0") == first || len(all.all) > mostImages || len(all.names) > mostImages {
		t.Errorf("%d images are held", len(all.all))
	}
}

// Content does not count as headers, and the limit on headers grows with the packed size.
func TestHeadersAreBounded(t *testing.T) {
	l := Budget{}.Layer(1)
	if err := errors.Join(l.headers(leastHeaders), l.Entry(&tar.Header{Typeflag: tar.TypeReg, Size: 1 << 20}), l.headers(1<<20)); err != nil {
		t.Error(err)
	}
	if err := l.headers(1); !errors.Is(err, ErrExceeded) {
		t.Errorf("a byte more: %v", err)
	}
	if err := (Budget{}).Layer(leastHeaders/headersRatio + 1).headers(leastHeaders + 1); err != nil {
		t.Errorf("of a larger layer: %v", err)
	}
}
