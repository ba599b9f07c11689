package probe

import (
	"slices"
	"testing"
	"testing/fstest"
)

func TestUsers(t *testing.T) {
	environment := map[string]string{}
	root := fstest.MapFS{
		"etc/passwd":        {Data: []byte("root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n")},
		"etc/subuid":        {Data: []byte("ada:100000:65536\n")},
		"etc/subgid":        {Data: []byte("ada:300000:65536\n")},
		"etc/nsswitch.conf": {Data: []byte("passwd: files\nsubid: sss # from the directory\n")},
	}
	u := users{files{root}, 2000, func(name string) string { return environment[name] }}
	if got, want := u.owners(1000), []string{"1000", "ada"}; !slices.Equal(got, want) {
		t.Errorf("owners of 1000: %v, want %v", got, want)
	}
	// This process's user is in no file.
	for _, step := range []struct{ variable, value, want string }{
		{"", "", ""}, {"LOGNAME", "log", "log"}, {"USER", "user", "user"}, {"SLURM_JOB_USER", "job", "user"}, {"SLURM_JOB_UID", "2000", "job"},
	} {
		environment[step.variable] = step.value
		if got := u.name(2000); got != step.want {
			t.Errorf("with %v: %q, want %q", environment, got, step.want)
		}
	}
	if got := u.name(3000); got != "" {
		t.Errorf("another user is called %q", got)
	}
	if got := u.freeSubIDs(); got != 365536 {
		t.Errorf("the first free id is %d", got)
	}
	if !u.subidFromNameService() {
		t.Error("the name service is not found")
	}
}
