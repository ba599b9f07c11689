package fastpath

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestForeignPrograms runs programs that are installed on the machine, because their
// libraries wait for connections in different ways.
func TestForeignPrograms(t *testing.T) {
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
	t.Run("Python by IPv6", func(t *testing.T) {
		need(t, "python3")
		serving := python(server,
			"import socket",
			"l = socket.create_server(('::', 5003), family=socket.AF_INET6, dualstack_ipv6=True)",
			"print('ready')",
			"for i in range(2):",
			" c, a = l.accept(); c.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 8)",
			" c.sendall((c.family.name + ' ' + socket.socket(fileno=socket.dup(c.fileno())).family.name + ' ' + a[0]).encode()); c.close()")
		ready(t, serving)
		got := python(client,
			"import socket",
			fmt.Sprintf("for a in ('%s', '%s'):", server.ipv6, server.address),
			" c = socket.create_connection((a, 5003))",
			" print(c.family.name, c.recv(99).decode())").wait()
		want := fmt.Sprintf("AF_INET6 AF_INET6 AF_INET6 %s\nAF_INET AF_INET6 AF_INET6 ::ffff:%s", client.ipv6, client.address)
		if got != want {
			t.Errorf("%q, not %q", got, want)
		}
		serving.wait()
	})
	t.Run("Java", func(t *testing.T) {
		need(t, "java")
		// It has sockets of IPv6 for IPv4 too, and sets options of IPv6 on them.
		source := filepath.Join(t.TempDir(), "Ask.java")
		if err := os.WriteFile(source, []byte(askInJava), 0o600); err != nil {
			t.Fatal(err)
		}
		serving := server.serve("goserve", "5004", "4")
		before := client.host.counters()[countNames[countConnected]]
		out := client.run("exec", "java", "-Xint", source, server.address.String(), server.ipv6.String(), "5004")
		if want := "8 hello 16 hello 8 hello 16 hello"; strings.Join(strings.Fields(out), " ") != want {
			t.Errorf("Java says %q, not %q", out, want)
		}
		serving.wait()
		client.counts(t, countConnected, before+4)
	})
	t.Run("Redis", func(t *testing.T) {
		need(t, "redis-server")
		serving := server.start("exec", "redis-server", "--port", "5005", "--bind", "*", "::*", "--protected-mode", "no", "--save", "", "--dir", t.TempDir())
		for !strings.Contains(serving.line(), "Ready to accept") {
		}
		before := client.host.counters()[countNames[countConnected]]
		for _, address := range []string{server.address.String(), server.ipv6.String()} {
			out := client.run("exec", "redis-benchmark", "-h", address, "-p", "5005", "-c", "20", "-n", "2000", "-t", "set,get", "--csv")
			if strings.Count(out, "\n\"") != 2 {
				t.Errorf("redis-benchmark: %s", out)
			}
		}
		serving.kill()
		// For each of the two tests by each address; it asks for the server's settings, too.
		if n := client.host.counters()[countNames[countConnected]] - before; n < 80 {
			t.Errorf("%d connections were switched, of more than 80: %v", n, client.host.counters())
		}
	})
	t.Run("nginx", func(t *testing.T) {
		need(t, "nginx")
		need(t, "curl")
		dir := t.TempDir()
		config := fmt.Sprintf(`user root; daemon off; master_process off; pid %[1]s/pid; error_log stderr notice; events { worker_connections 64; }
http { access_log off; client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;
server { listen 5006; listen [::]:5006; location / { return 200 "$remote_addr\n"; } } }`, dir)
		if err := os.WriteFile(filepath.Join(dir, "conf"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		serving := server.start("exec", "nginx", "-p", dir, "-c", filepath.Join(dir, "conf"))
		before := client.host.counters()[countNames[countConnected]]
		for address, want := range map[string]string{server.address.String(): client.address.String(), "[" + server.ipv6.String() + "]": client.ipv6.String()} {
			url := "http://" + address + ":5006/"
			got := client.run("exec", "curl", "-s", "--retry", "50", "--retry-connrefused", "--retry-delay", "1", url)
			// Many at once.
			all := client.run("exec", "curl", "-sZ", "-H", "Connection: close", url+"[1-40]")
			if got != want || strings.Count(all+"\n", want+"\n") != 40 {
				t.Errorf("nginx has seen %q and %q, not %s", got, all, want)
			}
		}
		serving.kill()
		if n := client.host.counters()[countNames[countConnected]] - before; n < 82 {
			t.Errorf("%d connections were switched, of 82: %v", n, client.host.counters())
		}
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		programs := postgreSQL(t)
		data := filepath.Join(t.TempDir(), "data")
		// It does not run as root, the lab's only user: it sees itself as another one.
		// The memory that its processes share ends with them.
		serving := server.start("exec", "unshare", "--user", "--ipc", "--map-user=1000", "sh", "-ec", fmt.Sprintf(
			"%[1]s/initdb -D %[2]s -U ann -A trust --no-sync >/dev/null; echo host all all all trust >>%[2]s/pg_hba.conf\n"+
				"exec %[1]s/postgres -D %[2]s -p 5007 -c listen_addresses='*' -c unix_socket_directories= -c fsync=off -c dynamic_shared_memory_type=mmap 2>&1", programs, data))
		for !strings.Contains(serving.line(), "ready to accept") {
		}
		before := client.host.counters()[countNames[countConnected]]
		for _, address := range []string{server.address.String(), server.ipv6.String()} {
			bench := func(args ...string) string {
				return client.run("exec", append([]string{programs + "/pgbench", "-h", address, "-p", "5007", "-U", "ann"}, append(args, "postgres")...)...)
			}
			bench("-i", "-q")
			if out := bench("-c", "8", "-j", "2", "-t", "20"); !strings.Contains(out, "160/160") {
				t.Errorf("pgbench: %s", out)
			}
			// A connection for each transaction.
			if out := bench("-c", "8", "-j", "2", "-t", "10", "-C", "-S", "-n"); !strings.Contains(out, "80/80") {
				t.Errorf("pgbench: %s", out)
			}
		}
		serving.kill()
		if n := client.host.counters()[countNames[countConnected]] - before; n < 2*(1+8+80) {
			t.Errorf("%d connections were switched, of more than %d", n, 2*(1+8+80))
		}
	})
	t.Run("iperf3", func(t *testing.T) {
		need(t, "iperf3")
		for _, address := range []string{server.address.String(), server.ipv6.String()} {
			serving := server.start("exec", "iperf3", "-s", "-1", "--forceflush")
			for !strings.Contains(serving.line(), "listening") {
			}
			out := client.run("exec", "iperf3", "-S", "8", "-n", "20M", "-P", "4", "--bidir", "-c", address)
			if !strings.Contains(out, "iperf Done") {
				t.Errorf("iperf3: %s", out)
			}
			serving.wait()
		}
	})
}

// postgreSQL returns the folder with its server's programs, which Debian keeps
// out of the PATH.
func postgreSQL(t *testing.T) string {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(found) == 0 {
		t.Skip("needs postgres")
	}
	return filepath.Dir(found[len(found)-1])
}

// askInJava connects a socket and a channel to each address, sets and prints an
// option of each once it is connected, and prints what comes back.
const askInJava = `
import java.net.*;
import java.nio.*;
import java.nio.channels.*;

public class Ask {
	public static void main(String[] args) throws Exception {
		for (int i = 0; i < 2; i++) {
			InetSocketAddress to = new InetSocketAddress(args[i], Integer.parseInt(args[2]));
			try (Socket s = new Socket()) {
				s.connect(to);
				s.setTrafficClass(8);
				s.getOutputStream().write("hello".getBytes());
				s.shutdownOutput();
				System.out.println(s.getTrafficClass() + " " + new String(s.getInputStream().readAllBytes()));
			}
			try (SocketChannel c = SocketChannel.open(to)) {
				c.setOption(StandardSocketOptions.IP_TOS, 16);
				c.write(ByteBuffer.wrap("hello".getBytes()));
				c.shutdownOutput();
				ByteBuffer b = ByteBuffer.allocate(100);
				while (c.read(b) >= 0);
				System.out.println(c.getOption(StandardSocketOptions.IP_TOS) + " " + new String(b.array(), 0, b.position()));
			}
		}
	}
}
`
