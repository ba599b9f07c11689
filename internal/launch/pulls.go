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

// pulls holds the user's settings for pulling images. The programs that pull do
// not see them by themselves, because they have another environment and partly
// another file system.
type pulls struct {
	// passwords is a Docker configuration. It is nil without passwords.
	passwords []byte
	// authorities are certificates in PEM. It is nil for the host's own.
	authorities []byte
	// proxies holds the proxies and their exceptions, as KEY=value.
	proxies []string
	// notices lists settings that will not work.
	notices []string
}

// Paths of these settings below Paths.Run. The kubelet looks for passwords in its
// home.
const (
	rolesHome       = "home"
	passwordsFile   = rolesHome + "/.docker/config.json"
	authoritiesFile = "certificate-authorities.pem"
)

// readPulls reads the settings that the environment names. No error stops the
// run, which may need no pull at all.
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

// files returns the files that the roles read.
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

// runtimeEnv returns the settings in containerd's environment.
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

// outsideEnv returns the same settings for a process outside the sandbox.
func (p pulls) outsideEnv(getenv func(string) string) []string {
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

// inEitherCase returns the variables with these names that have a value. It also
// returns the ones with the lower-case names, which some programs read instead.
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

// proxyEnv returns the user's proxies, with the cluster's ranges as exceptions.
func proxyEnv(plan cluster.Plan, getenv func(string) string) []string {
	env := inEitherCase(getenv, "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
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
