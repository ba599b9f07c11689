package joblog

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Sealer seals the path of an output for an object. A path with its seal can be kept where others
// may write, such as the status of the object: they cannot name another file.
type Sealer struct{ key []byte }

// keySize is the size of a key, in bytes.
const keySize = 32

// NewSealer returns a sealer with the key in a file, which it creates if it is missing. Processes
// with the same file accept the seals of each other.
func NewSealer(path string) (Sealer, error) {
	key, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = createKey(path); err == nil {
			key, err = os.ReadFile(path)
		}
	}
	if err == nil && len(key) != keySize {
		err = fmt.Errorf("%s has %d bytes instead of %d: remove it", path, len(key), keySize)
	}
	if err != nil {
		return Sealer{}, fmt.Errorf("read the key for paths of outputs: %w", err)
	}
	return Sealer{key}, nil
}

// createKey creates a file with a new key, unless another process creates it first.
func createKey(path string) error {
	key := make([]byte, keySize)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = file.Write(key)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Link(file.Name(), path); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Seal returns the seal of a path for the object with a UID.
func (s Sealer) Seal(uid, path string) string {
	mac := hmac.New(sha256.New, s.key)
	fmt.Fprintf(mac, "%d:%s%s", len(uid), uid, path)
	return hex.EncodeToString(mac.Sum(nil))
}

// Valid reports whether Seal returned a seal for the UID and the path.
func (s Sealer) Valid(uid, path, seal string) bool {
	return hmac.Equal([]byte(s.Seal(uid, path)), []byte(seal))
}
