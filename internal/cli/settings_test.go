package cli

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/testutil"
)

// preferencesIn writes the two files, and returns an environment that names them.
func preferencesIn(t *testing.T, site, user string, more ...string) func(string) string {
	t.Helper()
	dir := t.TempDir()
	env := map[string]string{"BERTH_CONFIG": filepath.Join(dir, "site.yaml"), "XDG_CONFIG_HOME": dir}
	for i := 0; i < len(more); i += 2 {
		env[more[i]] = more[i+1]
	}
	if err := os.Mkdir(filepath.Join(dir, "berth"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{"site.yaml": site, "berth/config.yaml": user} {
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return func(name string) string { return env[name] }
}

const siteFile = `options:
  port-range: 30000-30999
  interface: ib0
  carrier: tcp
  ip-family: ipv4
  registry: [docker.io=http://mirror.site:5000, quay.io=http://mirror.site:5001]
  deny-egress: [10.1.0.0/16]
environment:
  HTTPS_PROXY: http://proxy.site:3128
  BERTH_REMOTE_PATH: /opt/berth/bin/berth
`

const userFile = `options:
  interface: eth1
  carrier: udp
  registry: quay.io=http://mine:5000
environment:
  HTTPS_PROXY: http://mine:3128
`

func TestPrecedence(t *testing.T) {
	p, err := readPreferences(preferencesIn(t, siteFile, userFile, "BERTH_IP_FAMILY", "dual", "BERTH_CARRIER", "tcp", "BERTH_REGISTRY", "c=http://c d=http://d"))
	if err != nil {
		t.Fatal(err)
	}
	var spec cluster.Spec
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	addSpecFlags(flags, &spec)
	if err := flags.Parse([]string{"--ip-family=auto", "--registry=e=http://e"}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.apply(flags); err != nil {
		t.Fatal(err)
	}
	want := cluster.Network{Ports: "30000-30999", Interface: "eth1", Carrier: "tcp", IPFamily: "auto", Refuse: []string{"10.1.0.0/16"}}
	if !reflect.DeepEqual(spec.Network, want) {
		t.Errorf("got %+v, want %+v", spec.Network, want)
	}
	registries := []string{
		"docker.io=http://mirror.site:5000", "quay.io=http://mirror.site:5001", "quay.io=http://mine:5000", "c=http://c", "d=http://d", "e=http://e",
	}
	if !slices.Equal(spec.Registries, registries) {
		t.Errorf("got %q, want %q", spec.Registries, registries)
	}
	var changed []string
	flags.Visit(func(flag *pflag.Flag) { changed = append(changed, flag.Name) })
	if !slices.Equal(changed, []string{"ip-family", "registry"}) {
		t.Errorf("%q seem to be typed by the user", changed)
	}
	for name, want := range map[string]string{"HTTPS_PROXY": "http://mine:3128", "BERTH_REMOTE_PATH": "/opt/berth/bin/berth", "HTTP_PROXY": ""} {
		if got := p.Getenv(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	effects, err := p.inEffect()
	if err != nil {
		t.Fatal(err)
	}
	var effective []string
	for _, s := range effects {
		effective = append(effective, s.Name+" "+s.Value+" "+filepath.Base(filepath.Dir(s.From))+"/"+filepath.Base(s.From))
	}
	if !slices.Contains(effective, "interface eth1 berth/config.yaml:2") || !slices.Contains(effective, "carrier tcp ./BERTH_CARRIER") {
		t.Errorf("in effect: %q", effective)
	}
}

func TestUnpackedLayersNeedNoCacheOfFiles(t *testing.T) {
	const site = "options:\n  image-cache: /project/images\n  lazy-pull: true\n"
	for _, c := range []struct {
		typed, user, variable string
		want                  cluster.Spec
	}{
		{"", "", "", cluster.Spec{ImageCache: "/project/images", LazyPull: true}},
		{"--snapshotter=erofs", "", "overlayfs", cluster.Spec{Snapshotter: "erofs", ImageCache: "/project/images", LazyPull: true}},
		{"--snapshotter=overlayfs", "", "", cluster.Spec{Snapshotter: "overlayfs"}},
		{"", "options:\n  snapshotter: overlayfs\n", "", cluster.Spec{Snapshotter: "overlayfs"}},
		{"", "", "overlayfs", cluster.Spec{Snapshotter: "overlayfs"}},
	} {
		p, err := readPreferences(preferencesIn(t, site, c.user, "BERTH_SNAPSHOTTER", c.variable))
		if err != nil {
			t.Fatal(err)
		}
		var spec cluster.Spec
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		addSpecFlags(flags, &spec)
		if err := flags.Parse(strings.Fields(c.typed)); err != nil {
			t.Fatal(err)
		}
		if _, err := p.apply(flags); err != nil {
			t.Fatal(err)
		}
		if got := (cluster.Spec{Snapshotter: spec.Snapshotter, ImageCache: spec.ImageCache, LazyPull: spec.LazyPull}); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q, file %q, variable %q: %+v, want %+v", c.typed, c.user, c.variable, got, c.want)
		}
	}
}

func TestNoFiles(t *testing.T) {
	dir := t.TempDir()
	p, err := readPreferences(func(name string) string { return map[string]string{"HOME": dir}[name] })
	if err != nil {
		t.Fatal(err)
	}
	if effects, err := p.inEffect(); err != nil || len(effects) != 0 && len(p.files) == 0 {
		t.Errorf("%v, %v", effects, err)
	}
	_, err = readPreferences(func(name string) string { return map[string]string{"BERTH_CONFIG": dir + "/none"}[name] })
	if err == nil || exitcode.Of(err) != exitcode.Config {
		t.Errorf("a file that is named and is not there: %v", err)
	}
}

// TestAllMistakes lists the mistakes of both files, each with its place.
func TestAllMistakes(t *testing.T) {
	_, err := readPreferences(preferencesIn(t,
		"options:\n  portrange: 1-2\n  no-pull: perhaps\n  file: a.yaml\n  carrier: [udp]\n  state-dir: scratch\nenvironment:\n  PATH: /bin\n",
		"options:\n  ip-family: ipv5\n  deny-egress: everything\n"))
	if err == nil {
		t.Fatal("nothing was found")
	}
	for _, part := range []string{
		`site.yaml:2: unknown option "portrange"`, `site.yaml:3: no-pull "perhaps": give true or false`, "site.yaml:4: the option file is for the command line only",
		"site.yaml:5: the option carrier takes one value", "site.yaml:6: state-dir scratch: give a path from the root",
		"site.yaml:8: the variable PATH is not one of", `berth/config.yaml:2: IP family "ipv5"`, `berth/config.yaml:3: range "everything"`,
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in\n%v", part, err)
		}
	}
}

// TestSiteForbidsOptions checks that a user's file can neither forbid an option nor
// permit it again.
func TestSiteForbidsOptions(t *testing.T) {
	p, err := readPreferences(preferencesIn(t, "options:\n  # here: true\nforbid:\n- here\n", "options: {here: true}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if from := p.forbidden["here"]; !strings.HasSuffix(from, "site.yaml:4") {
		t.Errorf("forbidden in %q", from)
	}
	effects, err := p.inEffect()
	if err != nil || !slices.ContainsFunc(effects, func(s setting) bool { return s.Name == "forbid" && s.Value == "here" }) {
		t.Errorf("in effect: %v, %v", effects, err)
	}
	_, err = readPreferences(preferencesIn(t, "forbid: [image]\n", "forbid: [here]\n"))
	for _, part := range []string{"site.yaml:1: the option image cannot be forbidden", "berth/config.yaml:1: only the site's file can forbid"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in\n%v", part, err)
		}
	}
}

func TestEnvironmentIsChecked(t *testing.T) {
	p, err := readPreferences(preferencesIn(t, "", "", "BERTH_NO_PULL", "perhaps"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.inEffect(); err == nil || !strings.Contains(err.Error(), `BERTH_NO_PULL: no-pull "perhaps": give true or false`) {
		t.Errorf("got %v", err)
	}
}

// TestStateDirOfEnvironment checks that BERTH_STATE_DIR does not set the option, even if
// a file does: the directory is only one of the candidates that berth checks.
func TestStateDirOfEnvironment(t *testing.T) {
	p, err := readPreferences(preferencesIn(t, "options: {state-dir: /local}", "", "BERTH_STATE_DIR", "/fast"))
	if err != nil {
		t.Fatal(err)
	}
	var spec cluster.Spec
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	addSpecFlags(flags, &spec)
	effects, err := p.apply(flags)
	if err != nil || spec.StateDir != "" || len(effects) != 1 || effects[0].Value != "/fast" {
		t.Errorf("%q, %v, %v", spec.StateDir, effects, err)
	}
}

// TestSettingsDocumentation keeps the tables in docs/settings.md true.
func TestSettingsDocumentation(t *testing.T) {
	content, err := os.ReadFile("../../docs/settings.md")
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("| option | | what it is |\n| --- | --- | --- |\n")
	flags, _ := settable()
	flags.VisitAll(func(flag *pflag.Flag) {
		kind, usage := pflag.UnquoteUsage(flag)
		if _, many := flag.Value.(pflag.SliceValue); many {
			kind += ", several"
		} else if kind == "" {
			kind = "true"
		}
		table.WriteString("| `" + flag.Name + "` | " + kind + " | " + strings.ReplaceAll(usage, "|", "\\|") + " |\n")
	})
	table.WriteString("\n| variable |\n| --- |\n")
	for _, name := range settableVariables() {
		table.WriteString("| `" + name + "` |\n")
	}
	if strings.Contains(string(content), table.String()) {
		return
	}
	if prose, _, found := strings.Cut(string(content), "| option |"); testutil.Updating() && found {
		if err := os.WriteFile("../../docs/settings.md", []byte(prose+table.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("docs/settings.md has other tables than these (-update writes them):\n%s", table.String())
}

// TestSiteExample checks that the file that the package installs is valid, as it is and
// with its comments turned into settings.
func TestSiteExample(t *testing.T) {
	content, err := os.ReadFile("../../packaging/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var uncommented strings.Builder
	for line := range strings.Lines(string(content)) {
		if rest, ok := strings.CutPrefix(line, "  # "); ok && (strings.HasPrefix(rest, "- ") || settingLine.MatchString(rest)) {
			line = "  " + rest
		}
		uncommented.WriteString(line)
	}
	for _, text := range []string{string(content), uncommented.String()} {
		if _, err := readPreferences(preferencesIn(t, text, "")); err != nil {
			t.Errorf("%v, in\n%s", err, text)
		}
	}
	if text := uncommented.String(); !strings.Contains(text, "\n  registry:\n  - docker.io") {
		t.Errorf("the comments were not taken away:\n%s", text)
	}
}

var settingLine = regexp.MustCompile(`^[A-Za-z_-]+:(\s|$)`) //nolint:gochecknoglobals // a constant
