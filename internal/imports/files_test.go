package imports

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// ordered holds packages whose doc.go lists all files in the reading order, each above the
// files that it uses.
var ordered = []string{"internal/launch", "internal/network/fastpath", "internal/site/berthd"}

// A package with many files reads from the top if fewer than one in ten uses of another file
// lead to a file above.
func TestFilesUseFilesBelow(t *testing.T) {
	for _, name := range ordered {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("../..", name)
			uses, files := usesOf(t, dir)
			text, err := os.ReadFile(filepath.Join(dir, "doc.go"))
			if err != nil {
				t.Fatal(err)
			}
			_, order, _ := strings.Cut(string(text), "# Reading order")
			listed := regexp.MustCompile(`\b[a-z0-9_]+\.go\b`).FindAllString(order, -1)
			for _, file := range files {
				if file != "doc.go" && !slices.Contains(listed, file) {
					t.Errorf("doc.go does not list %s", file)
				}
			}
			var up []string
			for use := range uses {
				if slices.Index(listed, use[1]) < slices.Index(listed, use[0]) {
					up = append(up, use[0]+" uses "+use[1])
				}
			}
			slices.Sort(up)
			t.Logf("%d of %d uses lead up", len(up), len(uses))
			if 10*len(up) >= len(uses) {
				t.Errorf("%d of %d uses lead up:\n%s", len(up), len(uses), strings.Join(up, "\n"))
			}
		})
	}
}

// usesOf returns all files of a package except tests, and every use of one file by another as
// the pair of user and used.
func usesOf(t *testing.T, dir string) (map[[2]string]bool, []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	var parsed []*ast.File
	var files []string
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		parsed, files = append(parsed, file), append(files, filepath.Base(path))
	}
	// Errors are of names from other packages, which do not matter here.
	config := types.Config{Importer: noPackages{}, Error: func(error) {}}
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	pkg, _ := config.Check(dir, set, parsed, &info)
	uses := map[[2]string]bool{}
	for id, object := range info.Uses {
		if object.Pkg() != pkg || !object.Pos().IsValid() {
			continue
		}
		from, to := filepath.Base(set.Position(id.Pos()).Filename), filepath.Base(set.Position(object.Pos()).Filename)
		if from != to {
			uses[[2]string{from, to}] = true
		}
	}
	return uses, files
}

type noPackages struct{}

func (noPackages) Import(path string) (*types.Package, error) {
	return nil, errors.New("not needed: " + path)
}
