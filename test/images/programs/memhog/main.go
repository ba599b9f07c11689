// Command memhog takes memory: so many MiB, at some rate, in so many
// processes, and keeps it. For tests of limits and of what dies first.
//
//	memhog -mb 200 [-rate 100] [-children 2] [-hold 1m] [-shm]
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"
)

func main() {
	mb := flag.Int("mb", 100, "MiB that each process takes")
	rate := flag.Int("rate", 0, "MiB per second; 0: at once")
	children := flag.Int("children", 0, "further processes that do the same")
	hold := flag.Duration("hold", time.Hour, "how long to keep it")
	shm := flag.Bool("shm", false, "take it as files in /dev/shm instead of anonymous memory")
	flag.Parse()
	if err := run(*mb, *rate, *children, *hold, *shm); err != nil {
		fmt.Fprintln(os.Stderr, "memhog:", err)
		os.Exit(1)
	}
}

func run(mb, rate, children int, hold time.Duration, shm bool) error {
	var started []*exec.Cmd
	for range children {
		c := exec.Command("/proc/self/exe", "-mb", strconv.Itoa(mb), "-rate", strconv.Itoa(rate),
			"-hold", hold.String(), "-shm="+strconv.FormatBool(shm))
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Start(); err != nil {
			return fmt.Errorf("start child: %w", err)
		}
		started = append(started, c)
	}
	kept := make([][]byte, 0, mb)
	for i := range mb {
		block := make([]byte, 1<<20)
		for at := 0; at < len(block); at += 4096 {
			block[at] = byte(i + 1) // a page that is only read is not counted
		}
		if shm {
			name := fmt.Sprintf("/dev/shm/memhog-%d-%d", os.Getpid(), i)
			if err := os.WriteFile(name, block, 0o600); err != nil {
				return fmt.Errorf("take MiB %d: %w", i+1, err)
			}
		} else {
			kept = append(kept, block)
		}
		if rate > 0 {
			time.Sleep(time.Second / time.Duration(rate))
		}
	}
	fmt.Printf("memhog %d: holds %d MiB\n", os.Getpid(), mb)
	time.Sleep(hold)
	fmt.Printf("memhog %d: held %d blocks to the end\n", os.Getpid(), len(kept))
	for _, c := range started {
		if err := c.Wait(); err != nil {
			return fmt.Errorf("child %d: %w", c.Process.Pid, err)
		}
	}
	return nil
}
