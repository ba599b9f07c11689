package cluster

import "testing"

func TestParseMount(t *testing.T) {
	for value, want := range map[string]FolderMount{
		"/scratch":           {"/scratch", "/scratch", false},
		"/scratch/":          {"/scratch", "/scratch", false},
		"/scratch:ro":        {"/scratch", "/scratch", true},
		"/scratch:/data":     {"/scratch", "/data", false},
		"/scratch:/data/:ro": {"/scratch", "/data", true},
		"/scratch:/data:rw":  {"/scratch", "/data", false},
		"data:/data":         {"data", "/data", false},
	} {
		if got, err := ParseMount(value); err != nil || got != want {
			t.Errorf("ParseMount(%q) = %+v, %v, want %+v", value, got, err, want)
		}
	}
	for _, value := range []string{"", ":ro", ":/data", "/a:b", "/a:/b:/c", "/a:/", "/a:/b:wo"} {
		if got, err := ParseMount(value); err == nil {
			t.Errorf("ParseMount(%q) = %+v, want an error", value, got)
		}
	}
}

func TestMountsComeFromUsersDirectory(t *testing.T) {
	spec := Spec{Mounts: []string{"data:/data", "/scratch:ro", "."}}
	spec.Absolute("/home/alice")
	want := []FolderMount{{"/home/alice/data", "/data", false}, {"/scratch", "/scratch", true}, {"/home/alice", "/home/alice", false}}
	for i, m := range mountsOf(spec) {
		if m != want[i] {
			t.Errorf("%+v, want %+v", m, want[i])
		}
	}
}
