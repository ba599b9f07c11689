package recipe

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const example = `
# a comment
tag docker.io/library/a:1
tag docker.io/library/a:latest
file tool /bin/tool 0755
links tool /bin x @names
text /var/late/f 0600 0:0 "f"
dir /var/late 0700 7:7
layer
exclude tree/no usr/share/doc
tree root /
dir /etc 0700 1:1
text /etc/hosts 0640 5:5 "mine"
dir /srv 1777 33:34
text /srv/t 0640 1000:2000 "two\nlines\n"
user 1000
workdir /srv
env A=b c
entrypoint ["/bin/tool", "x"]
cmd ["y"]
expose 80/tcp
label k=v
`

func sources(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"tool": "#!tool", "names": "y z\ntool\n", "root/etc/hosts": "hosts", "root/usr/share/doc/big": "no",
	} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("hosts", filepath.Join(dir, "root/etc/link")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func parse(t *testing.T, text, dir string) Recipe {
	t.Helper()
	r, err := Parse(strings.NewReader(text), dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func images(t *testing.T, r Recipe) map[string]v1.Image {
	t.Helper()
	out, err := r.Images("amd64", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// files lists a layer as "mode uid:gid name [-> link]".
func files(t *testing.T, l v1.Layer) []string {
	t.Helper()
	rc, err := l.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	var out []string
	for in := tar.NewReader(rc); ; {
		h, err := in.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(epoch()) {
			t.Errorf("%s has the time %s", h.Name, h.ModTime)
		}
		line := fmt.Sprintf("%04o %d:%d %s", h.Mode, h.Uid, h.Gid, h.Name)
		if h.Linkname != "" {
			line += " -> " + h.Linkname
		}
		out = append(out, line)
	}
}

func TestImages(t *testing.T) {
	all := images(t, parse(t, example, sources(t)))
	first, latest := all["docker.io/library/a:1"], all["docker.io/library/a:latest"]
	layers, err := first.Layers()
	if err != nil {
		t.Fatal(err)
	}
	if len(layers) != 2 {
		t.Fatalf("got %d layers, want 2", len(layers))
	}
	for i, want := range [][]string{
		{"0755 0:0 bin/", "0755 0:0 bin/tool", "0777 0:0 bin/x -> tool", "0777 0:0 bin/y -> tool", "0777 0:0 bin/z -> tool",
			"0755 0:0 var/", "0700 7:7 var/late/", "0600 0:0 var/late/f"},
		{"0700 1:1 etc/", "0777 0:0 etc/link -> hosts", "0755 0:0 usr/", "0755 0:0 usr/share/",
			"0640 5:5 etc/hosts", "1777 33:34 srv/", "0640 1000:2000 srv/t"},
	} {
		if err := validate.Layer(layers[i]); err != nil {
			t.Errorf("layer %d: %v", i, err)
		}
		if got := strings.Join(files(t, layers[i]), "\n"); got != strings.Join(want, "\n") {
			t.Errorf("layer %d:\n%s\nwant:\n%s", i, got, strings.Join(want, "\n"))
		}
	}
	c, err := first.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"Cmd":["y"],"Entrypoint":["/bin/tool","x"],"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin","A=b c"],"Labels":{"k":"v","org.opencontainers.image.ref.name":"docker.io/library/a:1"},"User":"1000","WorkingDir":"/srv","ExposedPorts":{"80/tcp":{}}}`
	if string(got) != want {
		t.Errorf("config:\n%s\nwant:\n%s", got, want)
	}
	one, _ := first.ConfigName()
	two, _ := latest.ConfigName()
	if one == two {
		t.Error("both tags have one config: a CRI would take them for one image")
	}
}

func TestArchives(t *testing.T) {
	dir := sources(t)
	for name, write := range map[string]func(Recipe, io.Writer, map[string]v1.Image) error{
		"oci": Recipe.WriteOCI, "docker": Recipe.WriteDocker,
	} {
		for _, compression := range []string{"gzip", "zstd", "none"} {
			t.Run(name+"/"+compression, func(t *testing.T) {
				if name == "docker" && compression != "gzip" {
					t.Skip("the docker format knows gzip only")
				}
				r := parse(t, example+"compression "+compression+"\n", dir)
				var a, b bytes.Buffer
				if err := write(r, &a, images(t, r)); err != nil {
					t.Fatal(err)
				}
				if err := write(r, &b, images(t, r)); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(a.Bytes(), b.Bytes()) {
					t.Error("two builds of the same inputs differ")
				}
				if name == "docker" {
					readDocker(t, a.Bytes())
				} else {
					readOCI(t, a.Bytes())
				}
			})
		}
	}
}

func readDocker(t *testing.T, archive []byte) {
	t.Helper()
	img, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }, nil)
	if err == nil {
		t.Errorf("an archive of two tags was read as one image: %v", img)
	}
	m, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil })
	if err != nil {
		t.Fatal(err)
	}
	if len(m) != 2 {
		t.Errorf("got %d images, want 2", len(m))
	}
}

func readOCI(t *testing.T, archive []byte) {
	t.Helper()
	blobs := map[string][]byte{}
	for in := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if blobs[h.Name] != nil {
			t.Errorf("%s is there twice", h.Name)
		}
		blobs[h.Name] = content
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(blobs["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range index.Manifests {
		names = append(names, d.Annotations["io.containerd.image.name"]+" "+d.Annotations["org.opencontainers.image.ref.name"])
		var m v1.Manifest
		if err := json.Unmarshal(blobs["blobs/sha256/"+d.Digest.Hex], &m); err != nil {
			t.Fatal(err)
		}
		for _, b := range append(m.Layers, m.Config) {
			content := blobs["blobs/sha256/"+b.Digest.Hex]
			if digest, size, err := v1.SHA256(bytes.NewReader(content)); err != nil || digest != b.Digest || size != b.Size {
				t.Errorf("blob %s: digest %s, size %d, %v", b.Digest, digest, size, err)
			}
		}
	}
	if got := strings.Join(names, "; "); got != "docker.io/library/a:1 1; docker.io/library/a:latest latest" {
		t.Errorf("names in the index: %s", got)
	}
}

func TestParseReportsEveryProblem(t *testing.T) {
	_, err := Parse(strings.NewReader("file a\ncompression lz4\nfoo bar\ntext /a 0644 0:0 nothing\ndir /x 9\nentrypoint sh\n"), ".")
	for _, want := range []string{"line 1 (file)", "line 2 (compression): unknown compression", "line 3 (foo): no such instruction",
		"line 4 (text)", "line 5 (dir): parse mode", "line 6 (entrypoint)", "no tag"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in: %v", want, err)
		}
	}
}
