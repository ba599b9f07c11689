package pki

import (
	"encoding/base64"
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"
)

// Kubeconfig returns a client configuration for one server and one identity, which
// contains the key. server is a URL, and authority a certificate in PEM.
func Kubeconfig(cluster, server string, authority []byte, client Pair) []byte {
	return render(cluster, server, authority, client.Cert, "client-key-data: "+base64.StdEncoding.EncodeToString(client.Key))
}

// KubeconfigWithKeyFile is like Kubeconfig, but names the file with the key.
func KubeconfigWithKeyFile(cluster, server string, authority, cert []byte, key string) []byte {
	return render(cluster, server, authority, cert, fmt.Sprintf("client-key: %q", key))
}

func render(cluster, server string, authority, cert []byte, key string) []byte {
	encode := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: %[1]q
  cluster:
    server: %[2]s
    certificate-authority-data: %[3]s
contexts:
- name: %[1]q
  context:
    cluster: %[1]q
    user: %[1]q
current-context: %[1]q
users:
- name: %[1]q
  user:
    client-certificate-data: %[4]s
    %[5]s
`, cluster, server, encode(authority), encode(cert), key)
}

// Client holds the contents of a kubeconfig.
type Client struct {
	// Server is a URL.
	Server          string
	Authority, Cert []byte
	// Key is empty if the kubeconfig names KeyFile instead.
	Key     []byte
	KeyFile string
}

// ReadKubeconfig parses the output of Kubeconfig or KubeconfigWithKeyFile. It returns an
// error if there is not exactly one cluster and one user.
func ReadKubeconfig(content []byte) (Client, error) {
	var config struct {
		Clusters []struct {
			Cluster struct {
				Server    string `json:"server"`
				Authority []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Cert    []byte `json:"client-certificate-data"`
				Key     []byte `json:"client-key-data"`
				KeyFile string `json:"client-key"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(content, &config); err != nil {
		return Client{}, fmt.Errorf("read kubeconfig: %w", err)
	}
	if len(config.Clusters) != 1 || len(config.Users) != 1 {
		return Client{}, errors.New("read kubeconfig: it is not one of this version of berth")
	}
	cluster, user := config.Clusters[0].Cluster, config.Users[0].User
	return Client{Server: cluster.Server, Authority: cluster.Authority, Cert: user.Cert, Key: user.Key, KeyFile: user.KeyFile}, nil
}
