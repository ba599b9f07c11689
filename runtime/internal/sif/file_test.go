package sif

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/fuzzbound"
	"berth.dev/berth/runtime/internal/squashfs"
)

// file makes a SIF file around the image of a folder with these files.
func file(t *testing.T, files map[string]string) []byte {
	t.Helper()
	mksquashfs, err := exec.LookPath("mksquashfs")
	if err != nil {
		if strings.Contains(os.Getenv("BERTH_CI"), "squashfs") {
			t.Fatal(err)
		}
		t.Skip("needs mksquashfs: apt-get install squashfs-tools")
	}
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	packed := filepath.Join(t.TempDir(), "image")
	if out, err := exec.Command(mksquashfs, dir, packed, "-quiet", "-no-progress", "-all-root").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	content, err := os.ReadFile(packed)
	if err != nil {
		t.Fatal(err)
	}
	return around(content)
}

// around returns a SIF file with one object, which holds the content. The descriptor
// before it is unused.
func around(content []byte) []byte {
	start := headerSize + 2*descriptorSize
	all := make([]byte, start, start+len(content))
	copy(all, "#!/usr/bin/env run-singularity\n")
	copy(all[magicOffset:], magic+"01\x0002\x00")
	order.PutUint64(all[tableOffset+8:], 2)
	order.PutUint64(all[tableOffset+16:], headerSize)
	d := all[headerSize+descriptorSize:]
	order.PutUint32(d, dataPartition)
	d[4] = 1
	order.PutUint64(d[17:], uint64(start))
	order.PutUint64(d[25:], uint64(len(content)))
	order.PutUint32(d[partitionOffset:], fsSquash)
	order.PutUint32(d[partitionOffset+4:], partPrimary)
	copy(d[partitionOffset+8:], "04\x00")
	return append(all, content...)
}

func TestLayer(t *testing.T) {
	all := file(t, map[string]string{
		"etc/passwd":                                  "root:x:0:0::/:/bin/sh\n",
		"srv/.wh.hidden":                              "",
		".singularity.d/runscript":                    "#!/bin/sh\nexec echo \"$@\"\n",
		".singularity.d/labels.json":                  `{"org.label-schema.build-arch":"amd64"}`,
		".singularity.d/env/10-docker2singularity.sh": "#!/bin/sh\nexport PATH=\"/opt/bin:$PATH\"\nexport LANG=\"${LANG:-\"C.UTF-8\"}\"\n",
		".singularity.d/env/90-environment.sh":        "#!/bin/sh\nexport GREETING='hello  you'\nif true; then\n    export NOT=this\nfi\nexport NOR=$(date)\n",
	})
	f, err := Open(bytes.NewReader(all), int64(len(all)), budget.Budget{})
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	config, err := f.Layer(&layer)
	if err != nil {
		t.Fatal(err)
	}
	if config.Architecture != "arm64" || config.Config.Labels["org.label-schema.build-arch"] != "amd64" || len(config.Config.Entrypoint) == 0 {
		t.Errorf("configuration %+v", config)
	}
	want := []string{"GREETING=hello  you", "LANG=C.UTF-8", "PATH=/opt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if !slices.Equal(config.Config.Env, want) {
		t.Errorf("environment %q, want %q", config.Config.Env, want)
	}
	var names []string
	for r := tar.NewReader(&layer); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name)
	}
	if !slices.Contains(names, "etc/passwd") || slices.Contains(names, "srv/.wh.hidden") || names[0] != "./" {
		t.Errorf("layer of %q", names)
	}
}

// The memory that an image takes is bounded, however small the image is.
func TestTextsAndLinkNamesAreBounded(t *testing.T) {
	files := map[string]string{}
	for k := range maxTexts/maxText + 1 {
		files[fmt.Sprintf("%s%d.sh", environment, k)] = strings.Repeat("#", maxText)
	}
	all := file(t, files)
	f, err := Open(bytes.NewReader(all), int64(len(all)), budget.Budget{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Layer(io.Discard); err == nil || !strings.Contains(err.Error(), "describe the image") {
		t.Errorf("files of %d bytes that describe an image: %v", len(files)*maxText, err)
	}
	e := newEntries(&File{most: budget.Budget{}.Layer(0)})
	name := strings.Repeat("n", 4000)
	for number := uint32(1); ; number++ {
		_, err := e.header(name, squashfs.Inode{Kind: squashfs.File, Links: 2, Number: number})
		if errors.Is(err, budget.ErrExceeded) {
			break
		}
		if err != nil || number > 1<<16 {
			t.Fatalf("%d names of %d bytes are kept: %v", number, len(name), err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	good := around([]byte("no squashfs, but long enough to hold the superblock of one, which is ninety-six bytes of a file, and some more"))
	descriptor := headerSize + descriptorSize
	for want, change := range map[string]func([]byte) []byte{
		"not a SIF file": func(b []byte) []byte { b[magicOffset] = 'X'; return b },
		"not a SIF":      func(b []byte) []byte { return b[:50] },
		"not a squashfs": func(b []byte) []byte { return b },
		"not complete":   func(b []byte) []byte { return b[:headerSize+descriptorSize] },
		"or damaged":     func(b []byte) []byte { order.PutUint64(b[descriptor+25:], 1<<62); return b },
		"damaged":        func(b []byte) []byte { order.PutUint64(b[tableOffset+8:], 1<<63); return b },
		"encrypted":      func(b []byte) []byte { b[descriptor+partitionOffset] = fsEncrypted; return b },
		"of kind 2":      func(b []byte) []byte { b[descriptor+partitionOffset] = 2; return b },
		"OCI-SIF":        func(b []byte) []byte { order.PutUint32(b[descriptor:], dataOCIRoot); return b },
		"no file system": func(b []byte) []byte { b[descriptor+4] = 0; return b },
	} {
		b := change(slices.Clone(good))
		if _, err := Open(bytes.NewReader(b), int64(len(b)), budget.Budget{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestReadExport(t *testing.T) {
	for line, want := range map[string]string{
		`export A=plain`:                           "plain",
		`export A="two words"`:                     "two words",
		`export A='$B "quoted"'`:                   `$B "quoted"`,
		`export A="$B:${B}"`:                       "b:b",
		`export A="${A:-"fall back"}"`:             "fall back",
		`export A=${B:-no}`:                        "b",
		`export A=${EMPTY-no}`:                     "",
		`export A=${EMPTY:-${B}x}`:                 "bx",
		`export A="\$B \"x\" \n"`:                  `$B "x" \n`,
		`export A=a\ b`:                            "a b",
		`export B=x A=y`:                           "y",
		`export A=`:                                "",
		`export A="{\"a\": [1]}"`:                  `{"a": [1]}`,
		`export A=$(id)`:                           "unset",
		"export A=`id`":                            "unset",
		`export A="unfinished`:                     "unset",
		`export A=${B:-unfinished`:                 "unset",
		`export A=${B%x}`:                          "unset",
		`export A=x; rm y`:                         "unset",
		`export A=~/x`:                             "unset",
		`export A`:                                 "unset",
		`A=not exported`:                           "unset",
		`export 1A=x`:                              "unset",
		`export A="` + strings.Repeat("${B:-", 40): "unset",
	} {
		values := map[string]string{"A": "", "B": "b", "EMPTY": ""}
		if want == "unset" {
			values["A"] = "unset"
		}
		readExport(line, values)
		if values["A"] != want {
			t.Errorf("%s: %q, want %q", line, values["A"], want)
		}
	}
}

func TestReadScript(t *testing.T) {
	// As 'apptainer build' makes it of a definition file whose lines are indented.
	const script = `#!/bin/sh
# Custom environment shell code should follow

    export A=1 # not more
    if [ -z "$B" ]; then
    export IN_A_BRANCH=1
    elif true; then export IN_ANOTHER=1
    fi
    for x in 1 2
    do
        while true; do export IN_A_LOOP=1; done
    done
	export AFTER="$A 2"
    use() {
        export IN_A_FUNCTION=1
    }
    case "$A" in
    1) if true; then
       export IN_A_CASE=1
       fi ;;
    2) export IN_ANOTHER_CASE=1 ;;
    3)
       export IN_THE_LAST=1
    esac
    (
    export IN_A_SUBSHELL=1
    )
    export B=1; if false; then
    export BEHIND=1
    fi
    if true; then
    one() { true; }
    export WITH_A_FUNCTION=1
    fi
    if true; then export IN_A_LINE=1; fi
export LAST=$AFTER
`
	values := map[string]string{}
	readScript(script, values)
	if want := map[string]string{"A": "1", "AFTER": "1 2", "LAST": "1 2"}; !maps.Equal(values, want) {
		t.Errorf("%v, want %v", values, want)
	}
}

func FuzzReadScript(f *testing.F) {
	f.Add("if x; then\n export A=1\nfi\nfoo() {\n}\n export B=$A\n")
	f.Fuzz(func(t *testing.T, script string) {
		fuzzbound.Watch(t)
		readScript(script, map[string]string{"B": "b"})
	})
}

func FuzzReadExport(f *testing.F) {
	f.Add(`export A="${B:-"x $C"}" D='e'`)
	f.Fuzz(func(t *testing.T, line string) {
		fuzzbound.Watch(t)
		readExport("export "+line, map[string]string{"B": "b"})
	})
}

func FuzzOpen(f *testing.F) {
	f.Add(around([]byte("content")))
	f.Fuzz(func(t *testing.T, b []byte) {
		fuzzbound.Watch(t)
		_, _ = Open(bytes.NewReader(b), int64(len(b)), budget.Budget{})
	})
}
