// Command greedy takes as much as it gets of what the pods of a node share, and does
// the work of another pod meanwhile.
//
//	greedy take connections|attempts|queries|instances [ADDRESS [NAME]]
//	greedy work connections|queries ADDRESS COUNT [NAME]
//	greedy serve ADDRESS      echoes, by TCP
//	greedy silent ADDRESS     is a name server that never answers for names below "silent"
//
// take goes on until it is killed. connections holds connections to an echo server.
// attempts connects to an address that does not answer. queries asks the name server
// for names below NAME. instances makes instances of inotify, and prints "none left"
// when it gets no more.
//
// work prints how many operations succeeded and failed, and the successes a second.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// timeout limits the wait for one answer.
const timeout = 20 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "greedy:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	args = append(args, "", "", "", "")
	switch verb, what, address := args[0], args[1], args[2]; verb {
	case "take":
		return take(what, address, args[3])
	case "work":
		count, err := strconv.Atoi(args[3])
		if err != nil {
			return fmt.Errorf("read the count: %w", err)
		}
		return work(what, address, count, args[4])
	case "serve":
		return serve(what)
	case "silent":
		return silent(what)
	default:
		return fmt.Errorf("no verb %q", verb)
	}
}

// take never returns without an error.
func take(what, address, name string) error {
	var some sync.WaitGroup
	workers := func(n int, do func(worker int)) error {
		for worker := range n {
			some.Go(func() {
				for i := worker; ; i += n {
					do(i)
				}
			})
		}
		some.Wait()
		return nil
	}
	switch what {
	case "connections":
		return workers(64, func(int) {
			conn, err := net.DialTimeout("tcp", address, timeout)
			if err != nil {
				time.Sleep(10 * time.Millisecond)
				return
			}
			go func() {
				_, _ = io.Copy(io.Discard, conn)
				conn.Close()
			}()
		})
	case "attempts":
		return workers(2000, func(int) {
			if conn, err := net.DialTimeout("tcp", address, time.Hour); err == nil {
				conn.Close()
			}
		})
	case "queries":
		return workers(1000, func(i int) { _ = ask(address, fmt.Sprintf("n%d.%s", i, name), 2*time.Second) })
	case "instances":
		for said := false; ; {
			if _, err := syscall.InotifyInit1(0); err != nil {
				if !said {
					fmt.Println("none left:", err)
				}
				said = true
				time.Sleep(time.Millisecond)
			}
		}
	}
	return fmt.Errorf("cannot take %q", what)
}

func work(what, address string, count int, name string) error {
	do := map[string]func() error{
		"connections": func() error { return connect(address) },
		"queries":     func() error { return ask(address, name, timeout) },
	}[what]
	if do == nil {
		return fmt.Errorf("cannot work with %q", what)
	}
	failed, began := 0, time.Now()
	for range count {
		if err := do(); err != nil {
			if failed == 0 {
				fmt.Println("the first failure:", err)
			}
			failed++
		}
	}
	fmt.Printf("%d done, %d failed; %.1f a second\n", count-failed, failed, float64(count-failed)/time.Since(began).Seconds())
	return nil
}

// connect makes one connection to an echo server.
func connect(address string) error {
	conn, err := net.DialTimeout("tcp", address, timeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	said, heard := []byte("hello\n"), make([]byte, 6)
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := conn.Write(said); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, heard); err != nil {
		return err
	}
	if !bytes.Equal(said, heard) {
		return fmt.Errorf("the echo is %q", heard)
	}
	return nil
}

// ask asks a name server for an address, again each second. Any answer counts, but a
// refusal or a failure of the server.
func ask(server, name string, within time.Duration) error {
	conn, err := net.Dial("udp", server)
	if err != nil {
		return err
	}
	defer conn.Close()
	query := []byte{1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for label := range strings.SplitSeq(name, ".") {
		query = append(append(query, byte(len(label))), label...)
	}
	query = append(query, 0, 0, 1, 0, 1)
	answer := make([]byte, 512)
	for end := time.Now().Add(within); time.Now().Before(end); {
		if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		if _, err := conn.Write(query); err != nil {
			return err
		}
		n, err := conn.Read(answer)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case err != nil:
			return err
		case n < 12:
			return fmt.Errorf("the answer has %d bytes", n)
		default:
			if code := answer[3] & 15; code != 0 && code != 3 {
				return fmt.Errorf("the name server answers with code %d", code)
			}
			return nil
		}
	}
	return errors.New("no answer of the name server")
}

func serve(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("serves")
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(conn, conn)
			conn.Close()
		}()
	}
}

func silent(address string) error {
	conn, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	fmt.Println("serves")
	message := make([]byte, 4096)
	for {
		n, from, err := conn.ReadFrom(message)
		if err != nil {
			return err
		}
		if n < 12 || bytes.Contains(bytes.ToLower(message[:n]), []byte("\x06silent")) {
			continue
		}
		message[2], message[3] = message[2]|0x80, 0x83 // there is no such name
		if _, err := conn.WriteTo(message[:n], from); err != nil {
			return err
		}
	}
}
