package keys

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"berth.dev/berth/internal/site/siteconf"
)

// Directory is the administrator's directory of keys. Whoever can read it controls etcd.
type Directory string

// Make writes certificates for the administrator, for the hosts of etcd in the configuration, and
// for nodes, each with a new key. It makes the authority only if there is none. Other nodes keep
// their certificates, so Make also renews some, and adds nodes.
func (d Directory) Make(config siteconf.Etcd, nodes []string, days int) error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("make directory of keys: %w", err)
	}
	now := time.Now()
	by, err := d.authority(now)
	if err != nil {
		return err
	}
	ends := now.AddDate(0, 0, days)
	hosts, err := endpointHosts(config)
	if err != nil {
		return err
	}
	root, err := by.client(adminUser, now, ends)
	if err != nil {
		return fmt.Errorf("make certificate of the administrator: %w", err)
	}
	if err := d.write("root", root); err != nil {
		return err
	}
	for _, host := range hosts {
		// berthd etcd serves HTTP on the loopback.
		member, err := by.member([]string{host, "127.0.0.1", "localhost"}, now, ends)
		if err != nil {
			return fmt.Errorf("make certificate of etcd on %s: %w", host, err)
		}
		if err := d.write(filepath.Join("etcd", host, "etcd"), member); err != nil {
			return err
		}
	}
	for _, node := range nodes {
		client, err := by.client(userOf(node), now, ends)
		if err != nil {
			return fmt.Errorf("make certificate of node %s: %w", node, err)
		}
		if err := d.write(filepath.Join("nodes", node, "node"), client); err != nil {
			return err
		}
	}
	return nil
}

// Admin returns the configuration for the administrator's connections to etcd.
func (d Directory) Admin(config siteconf.Etcd) siteconf.Etcd {
	config.CA, config.Cert, config.Key = d.path("ca.crt"), d.path("root.crt"), d.path("root.key")
	return config
}

func (d Directory) path(name string) string { return filepath.Join(string(d), name) }

// authority returns the authority in the directory, and makes it if there is none.
func (d Directory) authority(now time.Time) (*authority, error) {
	var files pair
	var err, errKey error
	files.certificate, err = os.ReadFile(d.path("ca.crt"))
	files.key, errKey = os.ReadFile(d.path("ca.key"))
	if errors.Is(err, fs.ErrNotExist) && errors.Is(errKey, fs.ErrNotExist) {
		if files, err = newAuthority(now); err == nil {
			err = d.write("ca", files)
		}
		errKey = nil
	}
	if err = errors.Join(err, errKey); err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	by, err := parseAuthority(files)
	if err != nil {
		return nil, fmt.Errorf("read the authority %s: %w", d.path("ca.crt"), err)
	}
	return by, nil
}

// write replaces NAME.crt and NAME.key.
func (d Directory) write(name string, files pair) error {
	if err := os.MkdirAll(filepath.Dir(d.path(name)), 0o700); err != nil {
		return fmt.Errorf("make directory of keys: %w", err)
	}
	for _, file := range []struct {
		path string
		text []byte
		mode fs.FileMode
	}{{d.path(name + ".key"), files.key, 0o600}, {d.path(name + ".crt"), files.certificate, 0o644}} {
		next := file.path + ".new"
		// A file from an interrupted attempt may have another mode.
		if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("write key: %w", err)
		}
		if err := os.WriteFile(next, file.text, file.mode); err != nil {
			return fmt.Errorf("write key: %w", err)
		}
		if err := os.Rename(next, file.path); err != nil {
			return fmt.Errorf("write key: %w", err)
		}
	}
	return nil
}

// endpointHosts returns the hosts of etcd.
func endpointHosts(config siteconf.Etcd) ([]string, error) {
	var hosts []string
	for _, endpoint := range config.Endpoints {
		parsed, err := url.Parse(endpoint)
		if err != nil {
			return nil, fmt.Errorf("read etcd.endpoints: %w", err)
		}
		hosts = append(hosts, parsed.Hostname())
	}
	return hosts, nil
}
