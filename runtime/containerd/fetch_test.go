package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestErrorsNameBlob(t *testing.T) {
	layer := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromString("layer"), Size: 5}
	broken := errors.New("the connection broke")
	for name, test := range map[string]struct {
		content io.Reader
		want    string // in the error; empty for none
	}{
		"complete":   {strings.NewReader("12345"), ""},
		"too short":  {strings.NewReader("123"), "fetch layer " + layer.Digest.String() + ": 3 of 5 bytes came"},
		"broken off": {io.MultiReader(strings.NewReader("123"), failing{io.ErrUnexpectedEOF}), "3 of 5 bytes came: unexpected EOF"},
		"an error":   {io.MultiReader(strings.NewReader("123"), failing{broken}), "fetch layer " + layer.Digest.String() + ": the connection broke"},
	} {
		_, err := io.ReadAll(&namingReader{ReadCloser: io.NopCloser(test.content), desc: layer})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
