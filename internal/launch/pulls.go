package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/sandbox"
)

// pulls is what the user's surroundings say about pulling images. The programs
// that pull see none of them: they run with an environment and, in part, a file
// system of their own.
type pulls struct {
	// passwords is a Docker configuration, nil where there are none.
	passwords []byte
	// authorities are certificates in PEM, nil for the host's own.
	authorities []byte
	// proxies and what is reached without them, as KEY=value.
	proxies []string
	// notices are what will not work.
	notices []string
}

// Where the roles find them, below Paths.Run. The kubelet looks for passwords
// in its home.
const (
	rolesHome       = "home"
	passwordsFile   = rolesHome + "/.docker/config.json"
	authoritiesFile = "certificate-authorities.pem"
)

// readPulls reads what the environment names. Nothing in it stops a run, which
// may need no pull at all.
func readPulls(plan cluster.Plan, getenv func(string) string) pulls {
	p := pulls{proxies: proxyEnv(plan, getenv)}
	p.checkProxies()
	var err error
	if path := getenv("SSL_CERT_FILE"); path != "" {
		if p.authorities, err = os.ReadFile(path); err != nil {
			p.notices = append(p.notices, fmt.Sprintf("SSL_CERT_FILE is not used: %v", err))
		}
	}
	p.readPasswords(passwordFiles(getenv))
	return p
}

// files are those that the roles read.
func (p pulls) files(run string) map[string]sandbox.File {
	files := map[string]sandbox.File{}
	if p.passwords != nil {
		files[filepath.Join(run, passwordsFile)] = sandbox.File{Mode: 0o600, Content: p.passwords}
	}
	if p.authorities != nil {
		files[filepath.Join(run, authoritiesFile)] = sandbox.File{Mode: 0o644, Content: p.authorities}
	}
	return files
}

// runtimeEnv is what containerd needs of it.
func (p pulls) runtimeEnv(run string, getenv func(string) string) []string {
	env := slices.Clone(p.proxies)
	if p.authorities != nil {
		env = append(env, "SSL_CERT_FILE="+filepath.Join(run, authoritiesFile))
	}
	if dirs := getenv("SSL_CERT_DIR"); dirs != "" {
		env = append(env, "SSL_CERT_DIR="+dirs)
	}
	return env
}

// passwordFiles are where Docker and Podman keep them, the first to be heard
// first. Both use the same format.
func passwordFiles(getenv func(string) string) []string {
	var files []string
	add := func(dir string, names ...string) {
		if dir != "" {
			files = append(files, filepath.Join(append([]string{dir}, names...)...))
		}
	}
	add(getenv("REGISTRY_AUTH_FILE"))
	if dir := getenv("DOCKER_CONFIG"); dir != "" {
		add(dir, "config.json")
	} else {
		add(getenv("HOME"), ".docker", "config.json")
	}
	add(getenv("XDG_RUNTIME_DIR"), "containers", "auth.json")
	add(getenv("HOME"), ".config", "containers", "auth.json")
	return files
}

// readPasswords brings the files together. An entry without a password is one
// that a program of the user's keeps, which the kubelet cannot ask.
func (p *pulls) readPasswords(files []string) {
	type login struct {
		Auth          string `json:"auth,omitempty"`
		Username      string `json:"username,omitempty"`
		Password      string `json:"password,omitempty"`
		IdentityToken string `json:"identitytoken,omitempty"`
	}
	type config struct {
		Auths map[string]login `json:"auths"`
	}
	all := config{Auths: map[string]login{}}
	kept := map[string]string{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		var one config
		if err == nil {
			err = json.Unmarshal(text, &one)
		}
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				p.notices = append(p.notices, fmt.Sprintf("passwords of registries are not used: read %s: %v", path, err))
			}
			continue
		}
		for registry, entry := range one.Auths {
			if entry == (login{}) {
				kept[registry] = path
			} else if _, known := all.Auths[registry]; !known {
				all.Auths[registry] = entry
			}
		}
	}
	for _, registry := range slices.Sorted(maps.Keys(kept)) {
		if _, known := all.Auths[registry]; !known {
			p.notices = append(p.notices, fmt.Sprintf(
				"the password for registry %s is not used: a credential helper keeps it (%s); give the pods an imagePullSecret, or use podman login",
				registry, kept[registry]))
		}
	}
	if len(all.Auths) > 0 {
		p.passwords, _ = json.Marshal(all) // strings always encode
	}
}

// checkProxies looks for what cannot work: neither pods nor containerd reach
// the host's loopback.
func (p *pulls) checkProxies() {
	for _, proxy := range p.proxies {
		name, value, _ := strings.Cut(proxy, "=")
		if strings.EqualFold(name, "NO_PROXY") {
			continue
		}
		if !strings.Contains(value, "://") {
			value = "http://" + value
		}
		parsed, err := url.Parse(value)
		if err != nil {
			p.notices = append(p.notices, fmt.Sprintf("%s is not an address of a proxy", name))
			continue
		}
		host := parsed.Hostname()
		if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
			p.notices = append(p.notices, fmt.Sprintf(
				"%s names this host's loopback, which neither pulls nor pods can reach: have the proxy listen on the host's own address", name))
		}
	}
}

// proxyEnv is the user's proxies, and the cluster's own ranges as exceptions.
func proxyEnv(plan cluster.Plan, getenv func(string) string) []string {
	var env []string
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		for _, name := range []string{name, strings.ToLower(name)} {
			if value := getenv(name); value != "" {
				env = append(env, name+"="+value)
			}
		}
	}
	if len(env) == 0 {
		return nil
	}
	exceptions := strings.Join([]string{
		"localhost", "127.0.0.1", ".svc", ".cluster.local", "kubernetes",
		plan.Addresses.Pods.String(), plan.Addresses.Services.String(), plan.Addresses.Nodes.String(),
	}, ",")
	// Programs read the one or the other: each gets the user's own in either.
	own := getenv("NO_PROXY")
	if own == "" {
		own = getenv("no_proxy")
	}
	if own != "" {
		exceptions = own + "," + exceptions
	}
	return append(env, "NO_PROXY="+exceptions, "no_proxy="+exceptions)
}
