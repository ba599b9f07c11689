package launch

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/node/sandbox"
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
func readPulls(ctx context.Context, plan cluster.Plan, getenv func(string) string) pulls {
	p := pulls{proxies: proxyEnv(plan, getenv)}
	p.checkProxies()
	var err error
	if path := getenv("SSL_CERT_FILE"); path != "" {
		if p.authorities, err = os.ReadFile(path); err != nil {
			p.notices = append(p.notices, fmt.Sprintf("SSL_CERT_FILE is not used: %v", err))
		}
	}
	if !plan.Registries.NoPull {
		p.readPasswords(ctx, getenv)
	}
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

// outsideEnv is the same for a process outside of the sandbox.
func (p pulls) outsideEnv(getenv func(string) string) []string {
	env := slices.Clone(p.proxies)
	for _, name := range []string{"SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if value := getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
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

// inEitherCase are the variables of these names that have a value, and those of
// their names in small letters, which some programs read instead.
func inEitherCase(getenv func(string) string, names ...string) (env []string) {
	for _, name := range names {
		for _, name := range []string{name, strings.ToLower(name)} {
			if value := getenv(name); value != "" {
				env = append(env, name+"="+value)
			}
		}
	}
	return env
}

// proxyEnv is the user's proxies, and the cluster's own ranges as exceptions.
func proxyEnv(plan cluster.Plan, getenv func(string) string) []string {
	env := inEitherCase(getenv, "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
	if len(env) == 0 {
		return nil
	}
	exceptions := strings.Join([]string{"localhost", "127.0.0.1", ".svc", ".cluster.local", "kubernetes"}, ",")
	for _, prefix := range plan.Addresses.Ranges() {
		exceptions += "," + prefix.String()
	}
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
