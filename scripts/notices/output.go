package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// preamble covers the licences that require more than handing on their text.
const preamble = `Berth is distributed with the software listed here. The texts follow the list.

SOURCE CODE

nft is one program made of libnftables, libnftnl, libmnl, jansson, GMP and the
GNU C library, all from Debian, and a front end of berth; as a whole
it is under the GNU General Public License, version 2. runc holds libseccomp and
the GNU C library, which are under the GNU Lesser General Public License, version
2.1. The source code of both, with what controls their compilation:

  - Debian's packages, listed with "deb" below: the source package of exactly
    that version, from any mirror of Debian (apt-get source NAME=VERSION) or,
    once a newer version has taken its place, from https://snapshot.debian.org
  - runc: the Go module of the version below
  - the rest: berth's own source code at the revision that 'berth version'
    prints, in programs/nft, runtime/Makefile and scripts/sysroot. With it,
    'make -C programs nft' and 'make -C runtime runc' link these programs again,
    also with a library that you have changed.

Who hands on this archive has to offer these sources as well; 'make sources'
collects Debian's part of them. Modules under the Mozilla Public License are
unchanged; their source code is the Go module of the version below.

CONTENTS

`

// Notices returns the text that goes with every copy: each licence text once, after
// the list of the components that it covers.
func (inv *Inventory) Notices() []byte {
	type text struct {
		body   string
		covers []string
	}
	texts := map[[32]byte]*text{}
	var order [][32]byte
	var out bytes.Buffer
	fmt.Fprint(&out, preamble)
	for _, purl := range inv.sorted() {
		c := inv.Components[purl]
		licences := strings.Join(c.Licences, ", ")
		if licences == "" {
			licences = "see its text"
		}
		name := c.Name
		if c.Kind == "deb" {
			name = "deb " + name
		}
		fmt.Fprintf(&out, "%s %s (%s)\n", name, c.Version, licences)
		files := make([]string, 0, len(c.Texts))
		for f := range c.Texts {
			files = append(files, f)
		}
		slices.Sort(files)
		for _, f := range files {
			key := sha256.Sum256([]byte(strings.Join(strings.Fields(c.Texts[f]), " ")))
			if texts[key] == nil {
				texts[key] = &text{body: c.Texts[f]}
				order = append(order, key)
			}
			label := strings.TrimSpace(c.Name + " " + c.Version + " " + f)
			texts[key].covers = append(texts[key].covers, label)
		}
	}
	for _, key := range order {
		t := texts[key]
		fmt.Fprintf(&out, "\n%s\n%s\n%s\n\n%s\n", strings.Repeat("=", 78), strings.Join(t.covers, "\n"),
			strings.Repeat("-", 78), strings.TrimRight(t.body, "\n"))
	}
	return out.Bytes()
}

// The part of CycloneDX 1.5 that is used here.
type (
	bom struct {
		Format       string       `json:"bomFormat"`
		Spec         string       `json:"specVersion"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Component component `json:"component"`
	}
	component struct {
		Type     string    `json:"type"`
		Ref      string    `json:"bom-ref"`
		Name     string    `json:"name"`
		Version  string    `json:"version,omitempty"`
		PURL     string    `json:"purl,omitempty"`
		Hashes   []hash    `json:"hashes,omitempty"`
		Licences []licence `json:"licenses,omitempty"`
	}
	hash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	licence struct {
		License struct {
			ID   string `json:"id,omitempty"`   // of SPDX
			Name string `json:"name,omitempty"` // of Debian
		} `json:"license"`
	}
	dependency struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn,omitempty"`
	}
)

// CycloneDX returns the bill of materials. It holds no time and no random serial
// number: the same programs give the same bytes.
func (inv *Inventory) CycloneDX(version string) []byte {
	b := bom{Format: "CycloneDX", Spec: "1.5", Version: 1, Metadata: metadata{component{
		Type: "application", Ref: "berth", Name: "berth", Version: version}}}
	var programs []string
	for p := range inv.Programs {
		programs = append(programs, p)
	}
	slices.Sort(programs)
	b.Dependencies = append(b.Dependencies, dependency{Ref: "berth"})
	for _, p := range programs {
		b.Components = append(b.Components, component{Type: "file", Ref: "file:" + p, Name: p})
		b.Dependencies[0].DependsOn = append(b.Dependencies[0].DependsOn, "file:"+p)
		uses := slices.Clone(inv.Programs[p])
		slices.Sort(uses)
		b.Dependencies = append(b.Dependencies, dependency{Ref: "file:" + p, DependsOn: uses})
	}
	for _, purl := range inv.sorted() {
		c := inv.Components[purl]
		entry := component{Type: "library", Ref: purl, Name: c.Name, Version: c.Version, PURL: purl}
		// go.sum's h1 is the SHA-256 of the list of the module's files.
		if raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(c.Sum, "h1:")); err == nil && len(raw) == 32 {
			entry.Hashes = []hash{{"SHA-256", hex.EncodeToString(raw)}}
		}
		for _, id := range c.Licences {
			var l licence
			if c.Kind == "deb" {
				l.License.Name = id
			} else {
				l.License.ID = id
			}
			entry.Licences = append(entry.Licences, l)
		}
		b.Components = append(b.Components, entry)
	}
	out, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		// Plain strings and slices of them can always be written as JSON.
		panic(err)
	}
	return append(out, '\n')
}
