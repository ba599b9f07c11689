package layer

import (
	"archive/tar"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/runtime/internal/erofs"
)

// ownersXattr is an attribute of a layer's root. It lists owners that a node may
// lack, so that a node need not read all files of a layer that another node has
// converted.
const ownersXattr = "trusted.berth.owners"

const (
	// firstOwner is the lowest id that is listed. Every node has the ids below it.
	firstOwner = 1000
	// maxList bounds the list, in bytes. The highest ids stay in it, because they are
	// the likeliest to be missing.
	maxList = 2 << 10
	// maxExample bounds a name in the list, in bytes.
	maxExample = 64
)

// Owner counts the files of a layer with the same owner and group.
type Owner struct {
	UID, GID uint32
	Count    int
	// Example is the name of the first file, cut at maxExample.
	Example string
}

type ownerKey struct{ uid, gid uint32 }

// owners counts the entries of an archive.
type owners map[ownerKey]*Owner

// ownerSize is the memory for an owner in bytes.
const ownerSize = 192

// add counts an entry. It reports whether the owner is new.
func (o owners) add(header *tar.Header) (added bool) {
	if header.Uid < firstOwner && header.Gid < firstOwner || header.Uid != int(uint32(header.Uid)) || header.Gid != int(uint32(header.Gid)) {
		return false
	}
	key := ownerKey{uint32(header.Uid), uint32(header.Gid)}
	if added = o[key] == nil; added {
		name := header.Name
		if len(name) > maxExample {
			name = strings.ToValidUTF8(name[:maxExample], "")
		}
		o[key] = &Owner{UID: key.uid, GID: key.gid, Example: name}
	}
	o[key].Count++
	return added
}

// list returns the owners, the highest ids first.
func (o owners) list() []Owner {
	var all []Owner
	for owner := range maps.Values(o) {
		all = append(all, *owner)
	}
	slices.SortFunc(all, func(a, b Owner) int {
		return cmp.Or(cmp.Compare(max(b.UID, b.GID), max(a.UID, a.GID)), cmp.Compare(b.UID, a.UID), cmp.Compare(b.GID, a.GID))
	})
	return all
}

// record writes the list of owners to the root of a layer. It omits the list if there is no
// room beside the root's other attributes.
func (c converter) record() {
	var text strings.Builder
	for _, o := range c.owners.list() {
		line := fmt.Sprintf("%d %d %d %s\n", o.UID, o.GID, o.Count, strconv.QuoteToASCII(o.Example))
		if text.Len()+len(line) > maxList {
			break
		}
		text.WriteString(line)
	}
	if text.Len() == 0 {
		return
	}
	meta := c.writer.Root().Meta()
	meta.Xattrs = append(slices.Clone(meta.Xattrs), erofs.Xattr{Name: ownersXattr, Value: []byte(text.String())})
	_ = c.writer.Describe(c.writer.Root(), meta)
}

// Owners returns the owners of a layer's files that a node may lack. The list is
// empty for a layer of an earlier version.
func Owners(file io.ReaderAt) ([]Owner, error) {
	xattrs, err := erofs.RootXattrs(file)
	if err != nil {
		return nil, fmt.Errorf("read owners of layer: %w", err)
	}
	var all []Owner
	for _, x := range xattrs {
		if x.Name != ownersXattr {
			continue
		}
		for line := range strings.Lines(string(x.Value)) {
			var o Owner
			if _, err := fmt.Sscanf(line, "%d %d %d %q\n", &o.UID, &o.GID, &o.Count, &o.Example); err != nil {
				return nil, fmt.Errorf("read owners of layer: %q: %w", line, erofs.ErrCorrupt)
			}
			all = append(all, o)
		}
	}
	return all, nil
}
