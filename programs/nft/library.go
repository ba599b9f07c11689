package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
)

// Library is a shared library that is linked into a program at a fixed address.
type Library struct {
	file, name string
	base       uint64
	segments   []*elf.Prog
	symbols    []elf.Symbol
	pointers   []pointer // in order of their offsets
	// Begin and end of the table of constructors (.init_array), as offsets.
	constructors, constructorsEnd uint64
}

// pointer is an eight-byte word that the linker has to fill.
type pointer struct {
	offset uint64
	value  string // the operand of .8byte in the assembler file
}

// open reads a library that is to be placed at base. It returns an error for a library with
// thread-local storage, or with relocations other than whole pointers.
func open(file, name string, base uint64) (*Library, error) {
	absolute, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	l := &Library{file: absolute, name: name, base: base}
	if f.Type != elf.ET_DYN || f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB {
		return nil, errors.New("not a shared library of 64-bit little-endian words")
	}
	for _, p := range f.Progs {
		switch p.Type {
		case elf.PT_LOAD:
			l.segments = append(l.segments, p)
		case elf.PT_TLS:
			return nil, errors.New("it has thread-local storage, which only a real linker can place")
		}
	}
	if s := f.Section(".init_array"); s != nil {
		l.constructors, l.constructorsEnd = s.Addr, s.Addr+s.Size
	}
	if l.symbols, err = f.DynamicSymbols(); err != nil {
		return nil, err
	}
	for _, section := range f.Sections {
		switch section.Type {
		case elf.SHT_RELA:
			if err := l.relocations(f, section); err != nil {
				return nil, fmt.Errorf("section %s: %w", section.Name, err)
			}
		case elf.SHT_REL:
			return nil, fmt.Errorf("section %s: relocations without addends", section.Name)
		}
	}
	slices.SortFunc(l.pointers, func(a, b pointer) int {
		if a.offset < b.offset {
			return -1
		}
		return 1
	})
	return l, nil
}

// relocations adds the pointers of a section with relocations for the dynamic linker.
func (l *Library) relocations(f *elf.File, section *elf.Section) error {
	table, err := section.Data()
	if err != nil {
		return err
	}
	for ; len(table) >= 24; table = table[24:] {
		offset, info := f.ByteOrder.Uint64(table), f.ByteOrder.Uint64(table[8:])
		addend := f.ByteOrder.Uint64(table[16:])
		// DynamicSymbols omits symbol 0.
		kind, symbol := uint32(info), int(info>>32)-1
		var relative, bySymbol bool
		switch f.Machine {
		case elf.EM_X86_64:
			k := elf.R_X86_64(kind)
			relative = k == elf.R_X86_64_RELATIVE
			bySymbol = k == elf.R_X86_64_GLOB_DAT || k == elf.R_X86_64_JMP_SLOT || k == elf.R_X86_64_64
		case elf.EM_AARCH64:
			k := elf.R_AARCH64(kind)
			relative = k == elf.R_AARCH64_RELATIVE
			bySymbol = k == elf.R_AARCH64_GLOB_DAT || k == elf.R_AARCH64_JUMP_SLOT || k == elf.R_AARCH64_ABS64
		default:
			return fmt.Errorf("machine %v is not known here", f.Machine)
		}
		switch {
		case relative:
			l.pointers = append(l.pointers, pointer{offset, fmt.Sprintf("%#x", l.base+addend)})
		case bySymbol && symbol >= 0 && symbol < len(l.symbols):
			l.pointers = append(l.pointers, pointer{offset, fmt.Sprintf("%s + %#x", l.symbols[symbol].Name, addend)})
		default:
			return fmt.Errorf("relocation %d of type %d at %#x is not a whole pointer", len(l.pointers), kind, offset)
		}
	}
	return nil
}

// assembler writes the segments, the pointers in them, and what the library
// defines and needs.
func (l *Library) assembler(w io.Writer) {
	for _, s := range l.symbols {
		switch {
		case s.Name == "": // a section
		case s.Section != elf.SHN_UNDEF && s.Value != 0:
			fmt.Fprintf(w, ".globl %s\n%s = %#x\n", s.Name, s.Name, l.base+s.Value)
		case elf.ST_BIND(s.Info) == elf.STB_WEAK:
			fmt.Fprintf(w, ".weak %s\n", s.Name)
		}
	}
	pointers := l.pointers
	for i, segment := range l.segments {
		fmt.Fprintf(w, ".section .%s.%d, \"%s\", %%progbits\n", l.name, i, flags(segment.Flags))
		at := segment.Vaddr
		upTo := func(next uint64) {
			if next > at {
				fmt.Fprintf(w, ".incbin \"%s\", %#x, %#x\n", l.file, segment.Off+at-segment.Vaddr, next-at)
				at = next
			}
		}
		for len(pointers) > 0 && pointers[0].offset < segment.Vaddr+segment.Filesz {
			upTo(pointers[0].offset)
			fmt.Fprintf(w, ".8byte %s\n", pointers[0].value)
			at += 8
			pointers = pointers[1:]
		}
		upTo(segment.Vaddr + segment.Filesz)
		if segment.Memsz > segment.Filesz {
			fmt.Fprintf(w, ".zero %#x\n", segment.Memsz-segment.Filesz)
		}
	}
	// The program's startup code calls these constructors. Destructors are left out:
	// the program ends after one task.
	fmt.Fprintf(w, ".section .init_array, \"aw\"\n")
	for _, p := range l.pointers {
		if p.offset >= l.constructors && p.offset < l.constructorsEnd {
			fmt.Fprintf(w, ".8byte %s\n", p.value)
		}
	}
	fmt.Fprintf(w, ".section .note.GNU-stack, \"\", %%progbits\n")
}

func flags(f elf.ProgFlag) string {
	text := "a"
	if f&elf.PF_W != 0 {
		text += "w"
	}
	if f&elf.PF_X != 0 {
		text += "x"
	}
	return text
}

// script places the segments behind everything else, each as readable, writable
// or executable as it was.
func (l *Library) script(w io.Writer) {
	fmt.Fprintln(w, "SECTIONS {")
	for i, segment := range l.segments {
		fmt.Fprintf(w, "  .%s.%d %#x : { KEEP(*(.%s.%d)) }\n", l.name, i, l.base+segment.Vaddr, l.name, i)
	}
	fmt.Fprintln(w, "}\nINSERT AFTER .bss;")
}
