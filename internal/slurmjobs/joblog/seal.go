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
	"time"
)

// Sealer seals the path of an output for an object. A path with its seal can be kept where others
// may write, such as the status of the object: they cannot name another file.
type Sealer struct{ key []byte }

// keySize is the size of a key, in bytes.
const keySize = 32

// NewSealer returns a sealer with the key in a file, which it creates if it is missing. Processes
// with the same file accept the seals of each other.
func NewSealer(path string) (Sealer, error) {
	key, err := readKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = createKey(path, os.Link); err == nil {
			key, err = readKey(path)
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

// writeTimeout limits the time that another process may take to write a key.
const writeTimeout = time.Second

// readKey reads a key. Without links, another process may not have written it yet.
func readKey(path string) ([]byte, error) {
	for end := time.Now().Add(writeTimeout); ; time.Sleep(10 * time.Millisecond) {
		key, err := os.ReadFile(path)
		if err != nil || len(key) >= keySize || time.Now().After(end) {
			return key, err
		}
	}
}

// createKey creates a file with a new key, unless another process creates it first. link is os.Link,
// which some file systems refuse.
func createKey(path string, link func(from, to string) error) error {
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
	err = link(file.Name(), path)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		err = writeKey(path, key)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// writeKey writes a key into a new file.
func writeKey(path string, key []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(key)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		os.Remove(path)
	}
	return err
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
