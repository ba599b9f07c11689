package fastpath

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// TestProgramsOfOthers are those that a machine may have: their libraries wait
// for connections in ways of their own.
func TestProgramsOfOthers(t *testing.T) {
	_, client, server := pair(t, labConfig{})
	need := func(t *testing.T, name string) {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip("needs " + name)
		}
	}
	python := func(p *labPod, lines ...string) *app {
		return p.start("exec", "python3", "-uc", strings.Join(lines, "\n"))
	}
	ready := func(t *testing.T, serving *app) {
		t.Helper()
		if line := serving.line(); line != "ready" {
			t.Fatalf("%v prints %q", serving.all, line)
		}
	}
	t.Run("threads of Python", func(t *testing.T) {
		need(t, "python3")
		serving := python(server,
			"import http.server",
			// With the library's queue of 5 some would rather stay on the overlay.
			"http.server.ThreadingHTTPServer.request_queue_size = 64",
			"h = http.server.ThreadingHTTPServer(('', 5001), http.server.BaseHTTPRequestHandler)",
			"http.server.BaseHTTPRequestHandler.log_message = lambda *a: None",
			"http.server.BaseHTTPRequestHandler.do_GET = lambda s: (s.send_response(200), s.end_headers(), s.wfile.write(s.client_address[0].encode()))",
			"print('ready'); h.serve_forever()")
		ready(t, serving)
		got := python(client,
			"import urllib.request, concurrent.futures as f",
			fmt.Sprintf("get = lambda i: urllib.request.urlopen('http://%s/').read().decode()", server.at(5001)),
			"print(set(f.ThreadPoolExecutor(8).map(get, range(40))))").wait()
		if want := fmt.Sprintf("{'%s'}", client.address); got != want {
			t.Errorf("the server has seen %s, not %s", got, want)
		}
		serving.kill()
		client.counts(t, countConnected, 40)
	})
	t.Run("coroutines of Python", func(t *testing.T) {
		need(t, "python3")
		serving := python(server,
			"import asyncio",
			"async def echo(r, w):",
			" w.write(await r.read()); await w.drain(); w.close()",
			"async def main():",
			" s = await asyncio.start_server(echo, '0.0.0.0', 5002); print('ready'); await s.serve_forever()",
			"asyncio.run(main())")
		ready(t, serving)
		got := python(client,
			"import asyncio",
			"async def ask(i):",
			fmt.Sprintf(" r, w = await asyncio.open_connection('%s', 5002)", server.address),
			" w.write(b'%d' % i); w.write_eof(); return int(await r.read()) == i and w.get_extra_info('peername')[0]",
			"async def main(): print(set(await asyncio.gather(*[ask(i) for i in range(40)])))",
			"asyncio.run(main())").wait()
		if want := fmt.Sprintf("{'%s'}", server.address); got != want {
			t.Errorf("the client has seen %s, not %s", got, want)
		}
		serving.kill()
		client.counts(t, countConnected, 80)
	})
	t.Run("iperf3", func(t *testing.T) {
		need(t, "iperf3")
		serving := server.start("exec", "iperf3", "-s", "-1", "--forceflush")
		for !strings.Contains(serving.line(), "listening") {
		}
		out := client.run("exec", "iperf3", "-n", "20M", "-P", "4", "--bidir", "-c", server.address.String())
		if !strings.Contains(out, "iperf Done") {
			t.Errorf("iperf3: %s", out)
		}
		serving.wait()
	})
}
