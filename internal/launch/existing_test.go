package launch

import (
	"strings"
	"testing"
)

func TestExistingRefusesOptionsOfOwnClusters(t *testing.T) {
	there := Existing{Kubeconfig: "/home/alice/config"}
	manifests := []string{"job.yaml"}
	for _, test := range []struct {
		name           string
		existing       Existing
		given, command []string
		manifests      []string
		want           string // empty for no error
	}{
		{"all options", Existing{"/config", "mine", true}, []string{"kubeconfig", "namespace", "pin", "file", "logs", "grace", "quiet"}, nil, manifests, ""},
		{"none", Existing{}, []string{"image", "ha"}, []string{"true"}, nil, ""},
		{"options of a cluster", there, []string{"kubeconfig", "image", "ha", "file"}, nil, manifests, "omit --image, --ha,"},
		{"a command", there, []string{"kubeconfig"}, []string{"./script.sh"}, nil, "KUBECONFIG=/home/alice/config ./script.sh"},
		{"no manifest", there, []string{"kubeconfig"}, nil, nil, "-f FILE"},
		{"pinned without a cluster", Existing{Pin: true}, []string{"pin"}, nil, manifests, "--kubeconfig FILE"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.existing.Check(test.given, test.command, test.manifests)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
