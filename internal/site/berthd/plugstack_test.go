package berthd

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPluginIsFoundInPlugstack(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plugin := file(pluginName, "")
	file("one.conf", "# optional "+plugin+"\noptional /other.so\n")
	file("two.conf", "optional "+plugin+" image=/opt # ours\n")
	file("circle", "include "+filepath.Join(folder, "circle")+"\n")
	for text, want := range map[string]string{
		"optional " + plugin + "\n":                         plugin,
		"required\t" + pluginName + " mount=/home\n":        plugin,
		"include " + filepath.Join(folder, "*.conf") + "\n": plugin,
		"": "does not name",
		"optional /other.so\n# optional " + plugin + "\n":                            "does not name",
		"include " + filepath.Join(folder, "none") + "\n":                            "does not name",
		"optional " + filepath.Join(folder, "elsewhere", pluginName) + " image=/a\n": "is not there",
		"include " + filepath.Join(folder, "circle") + "\n":                          "include each other",
	} {
		got, err := pluginOf(file("plugstack", text), []string{"/nowhere", folder})
		if filepath.IsAbs(want) {
			if got != want || err != nil {
				t.Errorf("%q: %s, %v", text, got, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, %v, want %s", text, got, err, want)
		}
	}
}

func TestPlugstackOfThisHost(t *testing.T) {
	folder := t.TempDir()
	own, other := filepath.Join(folder, "plugstack.conf"), filepath.Join(folder, "other.conf")
	config := map[string]string{"SLURM_CONF": filepath.Join(folder, "slurm.conf"), "PlugStackConfig": "(null)"}
	if _, err := os.Stat(configless); err != nil {
		if path, err := plugstack(config); err == nil || !strings.Contains(err.Error(), "'optional /usr/libexec/berth/spank_berth.so' into "+own) {
			t.Errorf("without one: %s, %v", path, err)
		}
	}
	for _, path := range []string{own, other} {
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if path, err := plugstack(config); path != own || err != nil {
		t.Errorf("beside slurm.conf: %s, %v", path, err)
	}
	config["PlugStackConfig"] = other
	if path, err := plugstack(config); path != other || err != nil {
		t.Errorf("the one that is configured: %s, %v", path, err)
	}
}

func TestPluginStatesItsSlurmVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), pluginName)
	for name, want := range map[string]string{"plugin_version": "22.05", "another_version": ""} {
		if err := os.WriteFile(path, library(t, name, 22<<16|5<<8|8), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := builtFor(path)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	if err := os.WriteFile(path, []byte("no library"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := builtFor(path); err == nil {
		t.Errorf("no library: %s", got)
	}
	for text, want := range map[string]string{"slurm-wlm 22.05.8\n": "22.05", "slurm 23.11.0-0rc1\n": "23.11", "slurm 24.05": "24.05", "": ""} {
		if got := release(text); got != want {
			t.Errorf("%q: %s", text, got)
		}
	}
}

// library returns a shared library that contains only a number with that name.
func library(t *testing.T, name string, number uint32) []byte {
	t.Helper()
	const header, section, symbol = 64, 64, 24
	names := append(append([]byte{0}, name...), 0)
	data := uint64(header + 4*section)
	symbols := data + 4
	strings := symbols + 2*symbol
	var file bytes.Buffer
	for _, part := range []any{
		elf.Header64{
			Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
			Type:  uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
			Shoff: header, Ehsize: header, Shentsize: section, Shnum: 4, Shstrndx: 3,
		},
		elf.Section64{},
		elf.Section64{Type: uint32(elf.SHT_PROGBITS), Addr: 0x1000, Off: data, Size: 4},
		elf.Section64{Type: uint32(elf.SHT_DYNSYM), Off: symbols, Size: 2 * symbol, Link: 3, Info: 1, Entsize: symbol},
		elf.Section64{Type: uint32(elf.SHT_STRTAB), Off: strings, Size: uint64(len(names))},
		number,
		elf.Sym64{},
		elf.Sym64{Name: 1, Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_OBJECT), Shndx: 1, Value: 0x1000, Size: 4},
		names,
	} {
		if err := binary.Write(&file, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	return file.Bytes()
}
