// Command greedy takes as much as it gets of what the pods of a node share, and does
// the work of another pod meanwhile.
//
//	greedy take connections|attempts|queries|flood|streams|instances [ADDRESS [NAME]]
//	greedy take processors PERCENT
//	greedy work connections|queries ADDRESS COUNT [NAME]
//	greedy serve ADDRESS      echoes, by TCP
//	greedy silent ADDRESS     is a name server that never answers for names below "silent"
//
// take goes on until it is killed. connections holds connections to an echo server.
// attempts connects to an address that does not answer. queries asks the name server
// for names below NAME. flood sends queries for NAME without waiting for the answers.
// streams holds connections to a name server, without a query. instances makes instances
// of inotify. processors uses processor time, where 100 is all of one processor: the
// control for the others, which use some as well. take prints "none left" when it gets no
// more connections, streams or instances.
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
	"runtime"
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
	noneLeft := onceSaid()
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
	// hold keeps one more connection open until the other side closes it. ended gets an
	// error of reading from it.
	hold := func(ended func(error)) {
		conn, err := net.DialTimeout("tcp", address, timeout)
		if err != nil {
			noneLeft(err)
			time.Sleep(10 * time.Millisecond)
			return
		}
		go func() {
			if _, err := io.Copy(io.Discard, conn); err != nil {
				ended(err)
			}
			conn.Close()
		}()
	}
	switch what {
	case "connections":
		return workers(64, func(int) { hold(noneLeft) })
	case "streams":
		return workers(64, func(int) { hold(func(error) {}) }) // the name server closes silent ones
	case "attempts":
		return workers(2000, func(int) {
			if conn, err := net.DialTimeout("tcp", address, time.Hour); err == nil {
				conn.Close()
			}
		})
	case "queries":
		return workers(1000, func(i int) { _ = ask(address, fmt.Sprintf("n%d.%s", i, name), 2*time.Second) })
	case "flood":
		return workers(4, func(int) {
			conn, err := net.Dial("udp", address)
			if err != nil {
				return
			}
			defer conn.Close()
			for range 1000 {
				_, _ = conn.Write(query(name)) // refused while the name server starts again
			}
		})
	case "instances":
		for {
			if _, err := syscall.InotifyInit1(0); err != nil {
				noneLeft(err)
				time.Sleep(time.Millisecond)
			}
		}
	case "processors":
		percent, err := strconv.Atoi(address)
		if err != nil {
			return fmt.Errorf("read the percentage: %w", err)
		}
		threads := max(1, (percent+99)/100)
		return workers(threads, func(int) { burn(float64(percent) / 100 / float64(threads)) })
	}
	return fmt.Errorf("cannot take %q", what)
}

// onceSaid returns a function that prints only its first error.
func onceSaid() func(error) {
	var once sync.Once
	return func(err error) { once.Do(func() { fmt.Println("none left:", err) }) }
}

// burn uses a share of a processor for a second.
func burn(share float64) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began, before := time.Now(), threadTime()
	for elapsed := time.Duration(0); elapsed < time.Second; elapsed = time.Since(began) {
		if threadTime()-before > time.Duration(share*float64(elapsed)) {
			time.Sleep(100 * time.Microsecond)
		}
	}
}

// threadTime returns the processor time of the calling thread.
func threadTime() time.Duration {
	const thread = 1 // RUSAGE_THREAD
	var usage syscall.Rusage
	if err := syscall.Getrusage(thread, &usage); err != nil {
		panic(err) // only for a wrong argument
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
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
	answer := make([]byte, 512)
	for end := time.Now().Add(within); time.Now().Before(end); {
		if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		if _, err := conn.Write(query(name)); err != nil {
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

// query returns a DNS message that asks for an address.
func query(name string) []byte {
	message := []byte{1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for label := range strings.SplitSeq(name, ".") {
		message = append(append(message, byte(len(label))), label...)
	}
	return append(message, 0, 0, 1, 0, 1)
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
