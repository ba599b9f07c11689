package pulls

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/base/cluster"
)

func environment(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func TestFirstPasswordFileWins(t *testing.T) {
	dir := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("home/.docker/config.json", `{"auths":{"a.test":{"auth":"ZG9ja2Vy"},"kept.test":{}},"credsStore":"desktop"}`)
	write("run/containers/auth.json", `{"auths":{"a.test":{"auth":"cG9kbWFu"},"b.test":{"username":"u","password":"p"}}}`)
	write("home/.config/containers/auth.json", `not JSON`)
	p := Read(t.Context(), cluster.Plan{}, environment(map[string]string{
		"HOME": filepath.Join(dir, "home"), "XDG_RUNTIME_DIR": filepath.Join(dir, "run"),
	}))
	const want = `{"auths":{"a.test":{"auth":"ZG9ja2Vy"},"b.test":{"username":"u","password":"p"}}}`
	if string(p.Passwords) != want {
		t.Errorf("passwords %s, want %s", p.Passwords, want)
	}
	if len(p.Notices) != 2 || !strings.Contains(p.Notices[0], ".config/containers/auth.json") || !strings.Contains(p.Notices[1], "registry kept.test") {
		t.Errorf("notices: %q", p.Notices)
	}
	for path, file := range p.Files("/run/berth") {
		if file.Mode != 0o600 {
			t.Errorf("%s has mode %o", path, file.Mode)
		}
	}
	if p := Read(t.Context(), cluster.Plan{}, environment(nil)); p.Passwords != nil || p.Notices != nil || len(p.Files("/run")) != 0 {
		t.Errorf("of nothing: %+v", p)
	}
}

// TestPasswordsThatHelpersKeep covers a helper with a password, one with a token that
// leaves a process with its output, and some without an answer.
func TestPasswordsThatHelpersKeep(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write("docker-credential-store", "#!/bin/sh\n[ $1 = get ] && read -r r || :; echo '{\"ServerURL\":\"'$r'\",\"Username\":\"of '$r'\",\"Secret\":\"s\"}'\n")
	write("docker-credential-token", "#!/bin/sh\nsleep 2 & echo '{\"Username\":\"<token>\",\"Secret\":\"t\"}'\n")
	write("docker-credential-locked", "#!/bin/sh\necho 'the keyring is locked'; exit 1\n")
	write("docker-credential-empty", "#!/bin/sh\necho '{}'\n")
	write("config.json", `{"auths":{"a.test":{},"b.test":{},"c.test":{"auth":"Yw=="}},"credsStore":"store",
		"credHelpers":{"b.test":"token","c.test":"locked","d.test":"locked","e.test":"empty","f.test":"../x","g.test":"missing"}}`)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	p := Read(t.Context(), cluster.Plan{}, environment(map[string]string{"DOCKER_CONFIG": dir}))
	const want = `{"auths":{"a.test":{"username":"of a.test","password":"s"},"b.test":{"identitytoken":"t"},"c.test":{"auth":"Yw=="}}}`
	if string(p.Passwords) != want {
		t.Errorf("passwords %s, want %s", p.Passwords, want)
	}
	for i, part := range []string{"d.test", "the keyring is locked", "e.test", "it has none", "f.test", "not the name", "g.test", "not found"} {
		if i/2 >= len(p.Notices) || !strings.Contains(p.Notices[i/2], part) {
			t.Errorf("no %q in notice %d of %q", part, i/2, p.Notices)
		}
	}
}

func TestProxies(t *testing.T) {
	plan := cluster.Plan{Addresses: cluster.Addresses{Family: cluster.Family{
		Pods: netip.MustParsePrefix("10.1.0.0/16"), Services: netip.MustParsePrefix("10.2.0.0/16"), Nodes: netip.MustParsePrefix("10.3.0.0/24"),
	}}}
	p := Read(t.Context(), plan, environment(map[string]string{"https_proxy": "http://proxy.site:3128", "NO_PROXY": ".site"}))
	want := []string{
		"https_proxy=http://proxy.site:3128",
		"NO_PROXY=.site,localhost,127.0.0.1,.svc,.cluster.local,kubernetes,10.1.0.0/16,10.2.0.0/16,10.3.0.0/24",
		"no_proxy=.site,localhost,127.0.0.1,.svc,.cluster.local,kubernetes,10.1.0.0/16,10.2.0.0/16,10.3.0.0/24",
	}
	if !slices.Equal(p.proxies, want) || p.Notices != nil {
		t.Errorf("proxies %q, notices %q", p.proxies, p.Notices)
	}
	for _, proxy := range []string{"http://localhost:3128", "127.0.0.1:3128", "socks5://[::1]:1080"} {
		p := Read(t.Context(), plan, environment(map[string]string{"HTTP_PROXY": proxy}))
		if len(p.Notices) != 1 || !strings.Contains(p.Notices[0], "loopback") {
			t.Errorf("%s: notices %q", proxy, p.Notices)
		}
	}
	if got := proxyEnv(plan, environment(map[string]string{"NO_PROXY": ".site"})); got != nil {
		t.Errorf("without a proxy: %q", got)
	}
}

func TestOutsideEnv(t *testing.T) {
	set := map[string]string{"SSL_CERT_FILE": "/site/ca.pem"}
	got := Settings{proxies: []string{"HTTPS_PROXY=http://proxy:3128"}}.OutsideEnv(func(name string) string { return set[name] })
	if want := []string{"HTTPS_PROXY=http://proxy:3128", "SSL_CERT_FILE=/site/ca.pem"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
