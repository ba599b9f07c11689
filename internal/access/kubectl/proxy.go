package kubectl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/kubectl/pkg/cmd/util"
	kubectlproxy "k8s.io/kubectl/pkg/proxy"
)

// proxy returns upstream's command with its own listener.
func proxy(factory util.Factory, streams genericiooptions.IOStreams) func(*cobra.Command, []string) {
	return func(command *cobra.Command, _ []string) {
		server, listener, err := openProxy(factory, command.Flags(), streams)
		util.CheckErr(err)
		fmt.Fprintf(streams.Out, "Starting to serve on %s\n", listener.Addr())
		util.CheckErr(server.ServeOnListener(listener))
	}
}

func openProxy(factory util.Factory, flags *pflag.FlagSet, streams genericiooptions.IOStreams) (*kubectlproxy.Server, net.Listener, error) {
	text := func(name string) string { value, _ := flags.GetString(name); return value }
	truth := func(name string) bool { value, _ := flags.GetBool(name); return value }
	config, err := factory.ToRESTConfig()
	if err != nil {
		return nil, nil, err
	}
	var filter *kubectlproxy.FilterServer
	if !truth("disable-filter") {
		filter = &kubectlproxy.FilterServer{
			AcceptPaths:   kubectlproxy.MakeRegexpArrayOrDie(text("accept-paths")),
			RejectPaths:   kubectlproxy.MakeRegexpArrayOrDie(text("reject-paths")),
			AcceptHosts:   kubectlproxy.MakeRegexpArrayOrDie(text("accept-hosts")),
			RejectMethods: kubectlproxy.MakeRegexpArrayOrDie(text("reject-methods")),
		}
	}
	keepalive, err := flags.GetDuration("keepalive")
	if err != nil {
		return nil, nil, err
	}
	server, err := kubectlproxy.NewServer(text("www"), slashed(text("api-prefix")), slashed(text("www-prefix")), filter, config, keepalive, truth("append-server-path"))
	if err != nil {
		return nil, nil, err
	}
	if path := text("unix-socket"); path != "" {
		if flags.Changed("port") {
			return nil, nil, errors.New("--unix-socket and --port exclude each other")
		}
		listener, err := server.ListenUnix(path)
		return server, listener, err
	}
	port, err := flags.GetInt("port")
	if err != nil {
		return nil, nil, err
	}
	host := text("address")
	if host == "localhost" {
		host = "127.0.0.1"
	}
	address, err := netip.ParseAddr(host)
	if err != nil || port < 0 || port > 65535 {
		return nil, nil, fmt.Errorf("%s:%d is not an address to listen on", host, port)
	}
	listener, err := listen(netip.AddrPortFrom(address, uint16(port)), streams.ErrOut)
	return server, listener, err
}

// slashed returns a prefix of paths with a slash at its end.
func slashed(prefix string) string {
	if len(prefix) == 0 || prefix[len(prefix)-1] != '/' {
		return prefix + "/"
	}
	return prefix
}
