package main

import (
	"slices"
	"strings"
)

// licences recognizes the licences that occur, by phrases that are in their
// text and in no other. A text that matches none is printed as it is, and the
// bill of materials then names none for it: a wrong name would be worse.
func licences(text string) []string {
	flat := strings.ToLower(strings.Join(strings.Fields(text), " "))
	has := func(phrases ...string) bool {
		return !slices.ContainsFunc(phrases, func(p string) bool { return !strings.Contains(flat, p) })
	}
	var ids []string
	for _, l := range []struct {
		id      string
		phrases []string
	}{
		{"Apache-2.0", []string{"apache license", "version 2.0, january 2004"}},
		{"MIT", []string{"permission is hereby granted, free of charge, to any person obtaining a copy", "the above copyright notice and this permission notice shall be included"}},
		{"ISC", []string{"permission to use, copy, modify, and/or distribute this software for any purpose with or without fee"}},
		{"ISC", []string{"permission to use, copy, modify, and distribute this software for any purpose with or without fee"}},
		{"MPL-2.0", []string{"mozilla public license version 2.0"}},
		{"MPL-2.0", []string{"mozilla public license, version 2.0", "1. definitions"}},
		{"GPL-2.0", []string{"gnu general public license", "version 2, june 1991"}},
		{"GPL-3.0", []string{"gnu general public license version 3, 29 june 2007"}},
		{"LGPL-2.1", []string{"gnu lesser general public license", "version 2.1, february 1999"}},
		{"CC-BY-4.0", []string{"creative commons attribution 4.0 international"}},
		{"CC0-1.0", []string{"cc0 1.0 universal"}},
		{"Zlib", []string{"the origin of this software must not be misrepresented", "this notice may not be removed or altered"}},
		{"Unlicense", []string{"this is free and unencumbered software released into the public domain"}},
	} {
		if has(l.phrases...) && !slices.Contains(ids, l.id) {
			ids = append(ids, l.id)
		}
	}
	// The BSD licences differ in the clause on names.
	if has("redistribution and use in source and binary forms", "redistributions in binary form must reproduce") {
		if has("endorse or promote") {
			ids = append(ids, "BSD-3-Clause")
		} else {
			ids = append(ids, "BSD-2-Clause")
		}
	}
	return ids
}
