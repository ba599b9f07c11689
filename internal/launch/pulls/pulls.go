package pulls

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

// Settings holds the user's settings for pulling images. The programs that pull do
// not see them by themselves, because they have another environment and partly
// another file system.
type Settings struct {
	// Passwords is a Docker configuration. It is nil without passwords.
	Passwords []byte
	// authorities are certificates in PEM. It is nil for the host's own.
	authorities []byte
	// proxies holds the proxies and their exceptions, as KEY=value.
	proxies []string
	// Notices lists settings that will not work.
	Notices []string
}

// Paths of these settings below Paths.Run. The kubelet looks for passwords in its
// home.
const (
	RolesHome       = "home"
	passwordsFile   = RolesHome + "/.docker/config.json"
	authoritiesFile = "certificate-authorities.pem"
)

// Read reads the settings that the environment names. No error stops the
// run, which may need no pull at all.
func Read(ctx context.Context, plan cluster.Plan, getenv func(string) string) Settings {
	p := Settings{proxies: proxyEnv(plan, getenv)}
	p.checkProxies()
	var err error
	if path := getenv("SSL_CERT_FILE"); path != "" {
		if p.authorities, err = os.ReadFile(path); err != nil {
			p.Notices = append(p.Notices, fmt.Sprintf("SSL_CERT_FILE is not used: %v", err))
		}
	}
	if !plan.Registries.NoPull {
		p.ReadPasswords(ctx, getenv)
	}
	return p
}

// Files returns the files that the roles read.
func (p Settings) Files(run string) map[string]sandbox.File {
	files := map[string]sandbox.File{}
	if p.Passwords != nil {
		files[filepath.Join(run, passwordsFile)] = sandbox.File{Mode: 0o600, Content: p.Passwords}
	}
	if p.authorities != nil {
		files[filepath.Join(run, authoritiesFile)] = sandbox.File{Mode: 0o644, Content: p.authorities}
	}
	return files
}

// RuntimeEnv returns the settings in containerd's environment.
func (p Settings) RuntimeEnv(run string, getenv func(string) string) []string {
	env := slices.Clone(p.proxies)
	if p.authorities != nil {
		env = append(env, "SSL_CERT_FILE="+filepath.Join(run, authoritiesFile))
	}
	if dirs := getenv("SSL_CERT_DIR"); dirs != "" {
		env = append(env, "SSL_CERT_DIR="+dirs)
	}
	return env
}

// OutsideEnv returns the settings of RuntimeEnv in the environment of a process outside the
// sandbox, with the user's own paths.
func (p Settings) OutsideEnv(getenv func(string) string) []string {
	env := slices.Clone(p.proxies)
	for _, name := range []string{"SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if value := getenv(name); value != "" {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// checkProxies notes proxies that cannot work. Neither pods nor containerd reach
// the host's loopback.
func (p *Settings) checkProxies() {
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
			p.Notices = append(p.Notices, fmt.Sprintf("%s is not an address of a proxy", name))
			continue
		}
		host := parsed.Hostname()
		if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
			p.Notices = append(p.Notices, fmt.Sprintf(
				"%s names this host's loopback, which neither pulls nor pods can reach: have the proxy listen on the host's own address", name))
		}
	}
}

// InEitherCase returns the variables with these names that have a value. It also
// returns the ones with the lower-case names, which some programs read instead.
func InEitherCase(getenv func(string) string, names ...string) (env []string) {
	for _, name := range names {
		for _, name := range []string{name, strings.ToLower(name)} {
			if value := getenv(name); value != "" {
				env = append(env, name+"="+value)
			}
		}
	}
	return env
}

// proxyEnv returns the user's proxies, with the cluster's ranges as exceptions.
func proxyEnv(plan cluster.Plan, getenv func(string) string) []string {
	env := InEitherCase(getenv, "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
	if len(env) == 0 {
		return nil
	}
	exceptions := strings.Join([]string{"localhost", "127.0.0.1", ".svc", ".cluster.local", "kubernetes"}, ",")
	for _, prefix := range plan.Addresses.Ranges() {
		exceptions += "," + prefix.String()
	}
	// Some programs read NO_PROXY and others no_proxy. Both get the user's
	// exceptions.
	own := getenv("NO_PROXY")
	if own == "" {
		own = getenv("no_proxy")
	}
	if own != "" {
		exceptions = own + "," + exceptions
	}
	return append(env, "NO_PROXY="+exceptions, "no_proxy="+exceptions)
}
