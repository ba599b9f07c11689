package kubectl

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientforward "k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/kubectl/pkg/cmd/portforward"
	"k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/streaming/pkg/httpstream"
)

// forward returns upstream's command with its own listeners.
func forward(factory util.Factory, streams genericiooptions.IOStreams) func(*cobra.Command, []string) {
	return func(command *cobra.Command, args []string) {
		options := portforward.NewDefaultPortForwardOptions(streams)
		options.PortForwarder = &forwarder{streams: streams}
		addresses, err := command.Flags().GetStringSlice("address")
		util.CheckErr(err)
		options.Address = addresses
		util.CheckErr(options.Complete(factory, command, args))
		util.CheckErr(options.Validate())
		util.CheckErr(options.RunPortForwardContext(command.Context()))
	}
}

// forwarder passes connections on to a pod through the API server.
type forwarder struct {
	streams  genericiooptions.IOStreams
	requests atomic.Int64
}

// ForwardPorts forwards ports until the stop channel closes or the pod is lost.
func (f *forwarder) ForwardPorts(method string, target *url.URL, options portforward.PortForwardOptions) error {
	pod, err := dialPod(method, target, options)
	if err != nil {
		return err
	}
	defer pod.Close()
	for _, port := range options.Ports {
		listeners, remote, err := f.open(options.Address, port)
		if err != nil {
			return err
		}
		for _, listener := range listeners {
			defer listener.Close()
			go f.serve(listener, pod, remote)
		}
	}
	if options.ReadyChannel != nil {
		close(options.ReadyChannel)
	}
	select {
	case <-options.StopChannel:
		return nil
	case <-pod.CloseChan():
		return clientforward.ErrLostConnectionToPod
	}
}

// dialPod opens a connection to the pod: over a WebSocket, or over SPDY if
// something in between understands only that.
func dialPod(method string, target *url.URL, options portforward.PortForwardOptions) (httpstream.Connection, error) {
	transport, upgrader, err := spdy.RoundTripperFor(options.Config)
	if err != nil {
		return nil, err
	}
	dialer := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, method, target)
	if !util.PortForwardWebsockets.IsDisabled() {
		socket, err := clientforward.NewSPDYOverWebsocketDialerForStreaming(target, options.Config)
		if err != nil {
			return nil, err
		}
		dialer = clientforward.NewFallbackDialerForStreaming(socket, dialer, func(err error) bool {
			return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
		})
	}
	pod, protocol, err := dialer.Dial(clientforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, fmt.Errorf("connect to the pod: %w", err)
	}
	if protocol != clientforward.PortForwardProtocolV1Name {
		pod.Close()
		return nil, fmt.Errorf("connect to the pod: the server speaks %q, not %q", protocol, clientforward.PortForwardProtocolV1Name)
	}
	return pod, nil
}

// open listens at all addresses for "LOCAL:REMOTE", "PORT" or ":REMOTE". The name
// localhost has two addresses; one of them suffices.
func (f *forwarder) open(addresses []string, port string) (listeners []net.Listener, remote uint16, err error) {
	local, far, both := strings.Cut(port, ":")
	if !both {
		far = local
	}
	number, err := strconv.ParseUint(far, 10, 16)
	if err != nil || number == 0 {
		return nil, 0, fmt.Errorf("%q is not a port", far)
	}
	remote = uint16(number)
	if local == "" {
		local = "0"
	}
	number, err = strconv.ParseUint(local, 10, 16)
	if err != nil {
		return nil, 0, fmt.Errorf("%q is not a port", local)
	}
	chosen := uint16(number)
	var problems []error
	for _, name := range addresses {
		all := []string{name}
		if name == "localhost" {
			all = []string{"127.0.0.1", "::1"}
		}
		opened := false
		for _, one := range all {
			address, err := netip.ParseAddr(one)
			var listener net.Listener
			if err == nil {
				listener, err = listen(netip.AddrPortFrom(address, chosen), f.streams.ErrOut)
			}
			if err != nil {
				problems = append(problems, err)
				continue
			}
			opened = true
			listeners = append(listeners, listener)
			chosen = uint16(listener.Addr().(*net.TCPAddr).Port)
			fmt.Fprintf(f.streams.Out, "Forwarding from %s -> %d\n", listener.Addr(), remote)
		}
		if !opened {
			for _, listener := range listeners {
				listener.Close()
			}
			return nil, 0, errors.Join(problems...)
		}
	}
	return listeners, remote, nil
}

func (f *forwarder) serve(listener net.Listener, pod httpstream.Connection, remote uint16) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return // it was closed
		}
		fmt.Fprintf(f.streams.Out, "Handling connection for %d\n", listener.Addr().(*net.TCPAddr).Port)
		go func() {
			defer conn.Close()
			if err := f.pass(conn, pod, remote); err != nil {
				fmt.Fprintf(f.streams.ErrOut, "forward a connection to port %d of the pod: %v\n", remote, err)
			}
		}()
	}
}

// pass copies both ways between a connection and a port of the pod. Each
// connection has two streams: one for data, and one that carries the node's
// errors.
func (f *forwarder) pass(conn net.Conn, pod httpstream.Connection, remote uint16) error {
	headers := http.Header{}
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	headers.Set(corev1.PortHeader, strconv.Itoa(int(remote)))
	headers.Set(corev1.PortForwardRequestIDHeader, strconv.FormatInt(f.requests.Add(1), 10))
	complaints, err := pod.CreateStream(headers)
	if err != nil {
		return err
	}
	defer pod.RemoveStreams(complaints)
	complaints.Close() // for writing
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := pod.CreateStream(headers)
	if err != nil {
		return err
	}
	defer pod.RemoveStreams(data)
	complaint := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(complaints)
		complaint <- string(text)
	}()
	go func() {
		_, _ = io.Copy(data, conn)
		data.Close() // for writing
	}()
	_, _ = io.Copy(conn, data) // the other stream, or the program behind the port, reports what broke one direction
	// Bytes that were not sent yet would keep the other stream from ending.
	_ = data.Reset()
	if text := <-complaint; text != "" {
		return errors.New(text)
	}
	return nil
}
