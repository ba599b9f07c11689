package savedstate

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// keySize is the key size of AES-256, in bytes.
const keySize = 32

// KeyFile returns the default path of a user's key. It is in the home directory,
// so that a reader of the state's folder cannot read the Secrets in it.
func KeyFile(getenv func(string) string) (string, error) {
	if path := getenv("BERTH_STATE_KEY"); path != "" {
		return path, nil
	}
	if base := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(base) {
		return filepath.Join(base, "berth", "state.key"), nil
	}
	home := getenv("HOME")
	if !filepath.IsAbs(home) {
		return "", errors.New("find the key for Secrets: HOME is not set; BERTH_STATE_KEY=FILE names one, or leave them out with --state-secrets=omit")
	}
	return filepath.Join(home, ".config", "berth", "state.key"), nil
}

// Key reads the key in a file, or creates it.
func Key(path string) ([]byte, error) {
	for {
		key, err := readKey(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return key, err
		}
		if err := makeKey(path); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("make the key for Secrets: %w; BERTH_STATE_KEY=FILE names another place", err)
		}
	}
}

func readKey(path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the key for Secrets: %w", err)
	}
	if err := checkAlone(path); err != nil {
		return nil, fmt.Errorf("read the key for Secrets: %w", err)
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(content)))
	if err != nil || len(key) != keySize {
		return nil, fmt.Errorf("read the key for Secrets: %s is not a key that berth made; Secrets that were saved with the right key are lost without it", path)
	}
	return key, nil
}

// makeKey creates a key's file atomically, unless it exists.
func makeKey(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	key := make([]byte, keySize)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".state-key-") // with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = file.WriteString(base64.StdEncoding.EncodeToString(key) + "\n")
	err = errors.Join(err, file.Sync(), file.Close())
	if err != nil {
		return err
	}
	return os.Link(file.Name(), path)
}
