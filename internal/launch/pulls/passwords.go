package pulls

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/docker/docker-credential-helpers/client"
)

// dockerConfig is the configuration file of Docker and Podman.
type dockerConfig struct {
	Auths map[string]registryLogin `json:"auths"`
	// CredentialsStore names the helper for entries of Auths without a password.
	// CredentialHelpers names the helpers of single registries.
	CredentialsStore  string            `json:"credsStore,omitempty"`
	CredentialHelpers map[string]string `json:"credHelpers,omitempty"`
}

type registryLogin struct {
	Auth          string `json:"auth,omitempty"`
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identitytoken,omitempty"`
}

// passwordFiles returns the paths where Docker and Podman keep passwords, in the
// order of precedence.
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

// ReadPasswords collects the passwords from the files and from the helpers that
// they name. Neither the kubelet nor berth-images could run the user's helpers.
func (p *Settings) ReadPasswords(ctx context.Context, getenv func(string) string) {
	known := map[string]registryLogin{}
	kept := map[string]string{} // the helper for each registry
	for _, path := range passwordFiles(getenv) {
		text, err := os.ReadFile(path)
		var one dockerConfig
		if err == nil {
			err = json.Unmarshal(text, &one)
		}
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				p.Notices = append(p.Notices, fmt.Sprintf("passwords of registries are not used: read %s: %v", path, err))
			}
			continue
		}
		for registry, helper := range one.CredentialHelpers {
			putNew(kept, registry, helper)
		}
		for registry, entry := range one.Auths {
			if entry == (registryLogin{}) && one.CredentialsStore != "" {
				putNew(kept, registry, one.CredentialsStore)
			} else if entry != (registryLogin{}) {
				putNew(known, registry, entry)
			}
		}
	}
	maps.DeleteFunc(kept, func(registry, _ string) bool { return known[registry] != registryLogin{} })
	p.askHelpers(ctx, kept, known)
	if len(known) > 0 {
		p.Passwords, _ = json.Marshal(dockerConfig{Auths: known}) // strings always encode
	}
}

func putNew[V any](m map[string]V, key string, value V) {
	if _, ok := m[key]; !ok {
		m[key] = value
	}
}

// helperLimit bounds the run of a helper, which may wait for input.
const helperLimit = 5 * time.Second

// askHelpers adds the passwords from the helpers, which it runs concurrently.
func (p *Settings) askHelpers(ctx context.Context, kept map[string]string, known map[string]registryLogin) {
	var all sync.WaitGroup
	var mu sync.Mutex
	failed := map[string]error{}
	for registry, helper := range kept {
		all.Go(func() {
			login, err := askHelper(ctx, helper, registry)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[registry] = err
				return
			}
			known[registry] = login
		})
	}
	all.Wait()
	for _, registry := range slices.Sorted(maps.Keys(failed)) {
		p.Notices = append(p.Notices, fmt.Sprintf(
			"the password for registry %s is not used: %v; give the pods an imagePullSecret, or use podman login", registry, failed[registry]))
	}
}

// tokenUser is the user name that marks the password as an identity token.
const tokenUser = "<token>"

func askHelper(ctx context.Context, helper, registry string) (registryLogin, error) {
	name := "docker-credential-" + helper
	if filepath.Base(name) != name {
		return registryLogin{}, fmt.Errorf("ask the credential helper %q: that is not the name of one", helper)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, helperLimit, fmt.Errorf("no answer within %s", helperLimit))
	defer cancel()
	answer, err := client.Get(func(args ...string) client.Program {
		command := exec.CommandContext(ctx, name, args...)
		command.WaitDelay = time.Second // for processes that the helper started
		return helperProgram{command}
	}, registry)
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err == nil && answer.Secret == "":
		err = errors.New("it has none")
	}
	switch {
	case err != nil:
		return registryLogin{}, fmt.Errorf("ask the credential helper %s: %w", name, err)
	case answer.Username == tokenUser:
		return registryLogin{IdentityToken: answer.Secret}, nil
	}
	return registryLogin{Username: answer.Username, Password: answer.Secret}, nil
}

// helperProgram is a helper that ends with its context.
type helperProgram struct{ command *exec.Cmd }

func (h helperProgram) Input(in io.Reader) { h.command.Stdin = in }

// Output returns the output of a helper that has ended with success, also if another
// process still has the pipe.
func (h helperProgram) Output() ([]byte, error) {
	output, err := h.command.Output()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	return output, err
}
