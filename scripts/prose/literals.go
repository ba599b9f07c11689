package main

import (
	"go/scanner"
	"go/token"
	"path"
	"strconv"
	"strings"
)

// sentence is the least number of words in a line of prose. Shorter lines of string
// literals are names, paths and keys.
const sentence = 3

// literals returns the lines of prose in the string literals of a Go file: messages and
// help. It returns none for tests, whose literals are mostly data.
func literals(name string, source []byte) (lines []line) {
	if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
		return nil
	}
	files := token.NewFileSet()
	var s scanner.Scanner
	s.Init(files.AddFile(name, files.Base(), len(source)), source, nil, 0)
	for {
		at, tok, literal := s.Scan()
		if tok == token.EOF {
			return lines
		}
		if tok != token.STRING {
			continue
		}
		first := files.Position(at).Line
		text, err := strconv.Unquote(literal)
		if err != nil {
			continue // the compiler reports it
		}
		raw := literal[0] == '`'
		for i, row := range strings.Split(text, "\n") {
			number := first
			if raw {
				number += i
			}
			if len(strings.Fields(row)) >= sentence {
				lines = append(lines, line{path: name, number: number, text: row})
			}
		}
	}
}
