package programs

import (
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// packageNote is a part of what a linker writes into a program about the
// package that it belongs to: https://systemd.io/ELF_PACKAGE_METADATA
type packageNote struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

const (
	packageNoteOwner = "FDO\x00"
	packageNoteType  = 0xcafe1a7e
)

func readPackageNote(path string) (packageNote, error) {
	file, err := elf.Open(path)
	if err != nil {
		return packageNote{}, err
	}
	defer file.Close()
	section := file.Section(".note.package")
	if section == nil {
		return packageNote{}, errors.New("no section .note.package")
	}
	content, err := section.Data()
	if err != nil {
		return packageNote{}, err
	}
	return parsePackageNote(content, file.ByteOrder)
}

// parsePackageNote parses a note. It consists of the lengths of owner and text, the type,
// the owner, and the text with zeros after it.
func parsePackageNote(content []byte, order binary.ByteOrder) (packageNote, error) {
	var note packageNote
	const header = 12
	if len(content) < header+len(packageNoteOwner) {
		return note, fmt.Errorf("a note of %d bytes is too short", len(content))
	}
	owner, text := order.Uint32(content), order.Uint32(content[4:])
	body := content[header+len(packageNoteOwner):]
	if owner != uint32(len(packageNoteOwner)) || order.Uint32(content[8:]) != packageNoteType ||
		string(content[header:header+owner]) != packageNoteOwner || uint64(text) > uint64(len(body)) {
		return note, errors.New("the note is not about a package")
	}
	body = body[:text]
	for len(body) > 0 && body[len(body)-1] == 0 {
		body = body[:len(body)-1]
	}
	if err := json.Unmarshal(body, &note); err != nil {
		return note, fmt.Errorf("parse note: %w", err)
	}
	return note, nil
}
