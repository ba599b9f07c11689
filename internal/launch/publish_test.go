package launch

import (
	"testing"

	"berth.dev/berth/internal/base/cluster"
)

func TestAccessToPublishedPorts(t *testing.T) {
	for _, c := range []struct {
		port string
		own  bool
		want string
	}{
		{"8080:80", false, "anyone who reaches a host of this cluster can connect to its port 8080, which leads to port 80 of the node"},
		{"192.0.2.1:8080:80", false, "anyone who reaches a host of this cluster can connect to 192.0.2.1:8080, which leads to port 80 of the node"},
		{"127.0.0.1:8080:80", false, "anyone on a host of this cluster can connect to 127.0.0.1:8080, which leads to port 80 of the node"},
		{"web=8080:80", true, "anyone whom this site lets into the network of this job can connect to its port 8080, which leads to port 80 of the node"},
		{"127.0.0.1:8080:80", true, "every process of this job can connect to 127.0.0.1:8080, which leads to port 80 of the node"},
	} {
		port, err := cluster.ParsePublish(c.port)
		if err != nil {
			t.Fatal(err)
		}
		if got := whoReaches(port, c.own); got != c.want {
			t.Errorf("%s: %s", c.port, got)
		}
	}
}
