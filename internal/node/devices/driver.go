package devices

import (
	"debug/elf"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// driver is the user-space part of NVIDIA's driver.
type driver struct {
	version string
	// folders lists the folders with the libraries; paths include links and omit
	// the machine's root.
	folders []string
	// libraries lists the paths of its files, without links.
	libraries []string
	// links lists the names that programs use for the libraries: NAME=FILE.
	links []string
}

// usualFolders lists where distributions and installers put libraries.
func usualFolders() []string {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	return []string{
		"/usr/lib/" + triplet, "/usr/lib64", "/usr/lib", "/lib64", "/lib/" + triplet, "/usr/lib/" + triplet + "/nvidia/current",
		"/usr/lib64/nvidia", "/usr/lib/nvidia", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/local/cuda/compat",
		"/run/nvidia/driver/usr/lib64", "/run/opengl-driver/lib", "/usr/lib/wsl/lib",
	}
}

// libraryFolders returns the folders where the host's own programs find
// libraries, in order, and then the usual ones.
func (m Machine) libraryFolders(libraryPath string) []string {
	folders := append(filepath.SplitList(libraryPath), m.configured("/etc/ld.so.conf", 0)...)
	return slices.DeleteFunc(append(folders, usualFolders()...), func(folder string) bool { return !filepath.IsAbs(folder) })
}

// configured returns the folders in a file of the dynamic linker's configuration and in
// the files that it includes, at most four deep. It skips files that it cannot read.
func (m Machine) configured(path string, depth int) []string {
	text, err := os.ReadFile(m.at(path))
	if err != nil || depth > 4 {
		return nil
	}
	var folders []string
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		pattern, included := strings.CutPrefix(line, "include ")
		if !included {
			if line != "" {
				folders = append(folders, line)
			}
			continue
		}
		if pattern = strings.TrimSpace(pattern); !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(path), pattern)
		}
		files, _ := filepath.Glob(m.at(pattern))
		for _, file := range files {
			folders = append(folders, m.configured(strings.TrimPrefix(file, m.Root), depth+1)...)
		}
	}
	return folders
}

// versioned matches the file name of a library, and captures the part up to .so and the
// version.
var versioned = regexp.MustCompile(`^(lib.+\.so)\.(\d+\.\d+[.\d]*)$`)

// findDriver finds the driver libraries that a program on the host would load:
// libcuda, and the libraries of the same version beside it.
func (m Machine) findDriver(folders []string) driver {
	var d driver
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		for _, folder := range folders {
			path, err := filepath.EvalSymlinks(m.at(filepath.Join(folder, name)))
			if err != nil {
				continue
			}
			match := versioned.FindStringSubmatch(filepath.Base(path))
			if match == nil || d.version != "" && match[2] != d.version || !ours(path) {
				continue // a stub, a library of another driver, or a 32-bit one
			}
			d.version = match[2]
			for _, found := range []string{folder, strings.TrimPrefix(filepath.Dir(path), m.Root)} {
				if !slices.Contains(d.folders, found) {
					d.folders = append(d.folders, found)
				}
			}
			break
		}
	}
	if d.version == "" {
		return d
	}
	d.collect(m)
	return d
}

// ours reports whether a library is a 64-bit one. If the file cannot be parsed, ours
// returns true and leaves the decision to the dynamic linker.
func ours(path string) bool {
	file, err := elf.Open(path)
	if err != nil {
		return true
	}
	defer file.Close()
	return file.Class == elf.ELFCLASS64
}

// collect lists the libraries in the driver's folders, and the links to them:
// the host's own linker needs the same.
func (d *driver) collect(m Machine) {
	files := map[string]string{} // paths by names
	type link struct{ name, path string }
	var links []link
	for _, folder := range d.folders {
		entries, _ := os.ReadDir(m.at(folder))
		for _, entry := range entries {
			name := entry.Name()
			if !strings.HasPrefix(name, "lib") || !strings.Contains(name, ".so") {
				continue
			}
			path := filepath.Join(m.at(folder), name)
			match := versioned.FindStringSubmatch(name)
			switch {
			case match != nil && match[2] == d.version:
				if real, err := filepath.EvalSymlinks(path); err == nil && files[name] == "" {
					files[name] = real
				}
			case entry.Type()&os.ModeSymlink != 0:
				links = append(links, link{name, path})
			}
		}
	}
	for _, path := range files {
		d.libraries = append(d.libraries, path)
	}
	slices.Sort(d.libraries)
	d.libraries = slices.Compact(d.libraries)
	for _, l := range links {
		// Few of a thousand links in a folder belong to the driver.
		stem, _, _ := strings.Cut(l.name, ".so")
		if files[stem+".so."+d.version] == "" {
			continue
		}
		if real, err := filepath.EvalSymlinks(l.path); err == nil && slices.Contains(d.libraries, real) {
			d.links = append(d.links, l.name+"="+filepath.Base(real))
		}
	}
	// A driver without links, such as a container's, has at least these names.
	for _, name := range []string{"libcuda.so", "libnvidia-ml.so"} {
		if file := name + "." + d.version; files[file] != "" {
			d.links = append(d.links, name+".1="+file)
		}
	}
	for name := range files {
		d.links = append(d.links, name+"="+name)
	}
	slices.Sort(d.links)
	d.links = slices.Compact(d.links)
}
