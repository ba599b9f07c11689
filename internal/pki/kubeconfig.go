package pki

import (
	"encoding/base64"
	"fmt"
)

// Kubeconfig renders a client configuration for one server and one identity.
// The text is small and fixed, so it is written out here rather than through
// client-go, whose start-up cost every command of berth would pay.
func Kubeconfig(cluster, server string, authority []byte, client Pair) []byte {
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
    client-key-data: %[5]s
`, cluster, server, encode(authority), encode(client.Cert), encode(client.Key))
}
