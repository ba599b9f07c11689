package budget

import (
	"cmp"
	"sync"
	"sync/atomic"
)

// Image counts what the layers of an image use together. Their sum has the same limits as
// one layer whose packed size is the sum of theirs. It is safe for concurrent use.
type Image struct {
	// packed is the sum of the packed sizes in bytes. keepable is the sum of the bytes that
	// the readers may keep because of them.
	packed, keepable                  atomic.Int64
	files, kept, content, read, steps atomic.Int64
	// headed is the sum of Layer.headed.
	headed atomic.Int64
}

// mostPacked bounds the size that a layer adds to the sums, which must not overflow.
const mostPacked = 1 << 50

// grow adds packed bytes to the sums.
func (i *Image) grow(packed, keepable int64) {
	i.packed.Add(min(packed, mostPacked))
	i.keepable.Add(min(keepable, mostPacked))
}

// Of makes a layer count for an image, too, unless the image is nil. It returns the layer.
func (l *Layer) Of(i *Image) *Layer {
	if i != nil {
		l.image = i
		i.grow(l.raises())
	}
	return l
}

// raises returns the packed bytes that the layer adds to the sums, and the bytes that a
// reader may keep because of them.
func (l *Layer) raises() (packed, keepable int64) {
	return min(l.packed, mostPacked), min(l.ratio*min(cmp.Or(l.table, l.packed), mostPacked), mostPacked)
}

// Drop subtracts what the layer has used from the count of its image. A caller that reads a
// layer again drops the count of the first try, because nothing of that try is left.
func (l *Layer) Drop() {
	i := l.image
	l.image = &Image{} // what is dropped twice, or used later, does not count
	packed, keepable := l.raises()
	i.grow(-packed, -keepable)
	i.files.Add(-l.files)
	i.kept.Add(-l.kept)
	i.content.Add(-l.content)
	i.read.Add(-l.read)
	i.steps.Add(-l.steps)
	i.headed.Add(-l.headed)
}

// addFile counts a file of the layer and of all layers.
func (l *Layer) addFile() error {
	l.files++
	if l.image.files.Add(1) > l.of(files) {
		return l.exceeded("%d files in all layers of the image or archive", l.of(files))
	}
	return nil
}

// keep counts bytes that the readers of the layer and of all layers keep.
func (l *Layer) keep(bytes int64) error {
	l.kept += bytes
	most := l.scaled(leastKept, 1, mostKept, l.image.keepable.Load())
	if l.image.kept.Add(bytes) > most {
		return l.exceeded("%d MB of names, links and attributes in all layers of the image or archive, in %d packed bytes", most>>20, l.image.packed.Load())
	}
	return nil
}

// unpackedOf counts unpacked bytes of all layers in one of the image's sums.
func (l *Layer) unpackedOf(sum *atomic.Int64, bytes int64) error {
	packed := l.image.packed.Load()
	most := l.scaled(leastContent, contentRatio, mostContent, packed)
	if all := sum.Add(bytes); all > most {
		return l.exceededBy((all-1)/(most/l.of(1))+1, "%d MB in all layers of the image or archive, unpacked from %d bytes", most>>20, packed)
	}
	return nil
}

// headersOf counts headers of the layer's archive and of all layers.
func (l *Layer) headersOf(bytes int64) error {
	l.headed += bytes
	packed := l.image.packed.Load()
	most := l.scaled(leastHeaders, headersRatio, mostHeaders, packed)
	if l.image.headed.Add(bytes) > most {
		return l.exceeded("%d MB of headers in all layers of the image or archive, unpacked from %d bytes", most>>20, packed)
	}
	return nil
}

// step counts a name that is looked up in the layer and in all layers.
func (l *Layer) step() error {
	l.steps++
	if l.image.steps.Add(1) > l.of(steps) {
		return l.exceeded("%d names in the paths of all layers of the image or archive", l.of(steps))
	}
	return nil
}

// Images holds the counts of images whose layers are read by separate calls. The zero
// value is empty. It is safe for concurrent use.
type Images struct {
	mu    sync.Mutex
	names []string
	all   map[string]*Image
}

// mostImages bounds the images that are counted at a time. Beyond it, the image that began
// first is forgotten, and its next layer counts from 0 again.
const mostImages = 64

// Of returns the count of the image with a name.
func (i *Images) Of(name string) *Image {
	i.mu.Lock()
	defer i.mu.Unlock()
	if there := i.all[name]; there != nil {
		return there
	}
	if i.all == nil {
		i.all = map[string]*Image{}
	}
	if len(i.names) == mostImages {
		delete(i.all, i.names[0])
		i.names = i.names[1:]
	}
	i.names, i.all[name] = append(i.names, name), &Image{}
	return i.all[name]
}
