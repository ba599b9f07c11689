package integration

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/corpus"
)

// helperName is the name of this program in the test image, where it is the
// workload.
const helperName = "helper"

// helper runs a command of the workload, such as sleep, and returns its exit code.
func helper(args []string) int {
	if len(args) == 0 {
		return 2
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	switch args[0] {
	case "sleep":
		<-stop
		return 0
	case "echo":
		fmt.Println(args[1])
		return 0
	case "describe": // all files of the image
		lines, err := corpus.Describe("/", "proc", "sys", "dev", "run", "etc/hosts", "etc/hostname", "etc/resolv.conf")
		fmt.Println(strings.Join(lines, "\n"))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	case "soak": // the number of rounds; 0 runs until the test ends it
		return soak(args[1], stop)
	case "view": // mounts a view at a folder, until it is killed
		return serveView(args[1], stop)
	case "cat":
		for _, file := range args[1:] {
			text, err := os.ReadFile(file)
			fmt.Print(string(text))
			if err != nil {
				fmt.Println(err)
			}
		}
		return 0
	case "affinity": // of a process: its CPUs
		fmt.Println(affinityOf(args[1]))
		return 0
	case "sysinfo": // the bytes of memory that the kernel reports
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println(info.Totalram * uint64(info.Unit))
		return 0
	case "exit":
		code, _ := strconv.Atoi(args[1])
		return code
	case "id":
		groups, _ := os.Getgroups()
		fmt.Printf("%d:%d %v\n", os.Getuid(), os.Getgid(), groups)
		return 0
	case "serve":
		return serve(args[1], args[2])
	case "dial":
		fmt.Println(dial(args[1]))
		return 0
	case "env":
		fmt.Println(os.Getenv(args[1]))
		return 0
	case "oomscore":
		text, _ := os.ReadFile("/proc/self/oom_score_adj")
		fmt.Print(string(text))
		return 0
	case "grow": // MB to reach: as fast as the machine can, then sleeps
		return grow(args[1], stop)
	case "slowly": // MB a second, without end
		return slowly(args[1])
	case "family": // MB each, in two children and their shared parent
		return family(args[1], stop)
	case "fill": // a file, and MB to write into it
		return fill(args[1], args[2], stop)
	case "orphan": // leaves a process behind that outlives its parent
		cmd := exec.Command("/proc/self/exe", "sleep")
		cmd.Args[0] = helperName
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if len(args) > 1 {
			<-stop
		}
		return 0
	}
	return 2
}

// touch allocates and writes to every page.
func touch(bytes int) []byte {
	b, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mmap:", err)
		os.Exit(3)
	}
	// Use pages of 4 KB: most programs grow in this slow way.
	_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 15 /* NOHUGEPAGE */)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	return b
}

func grow(megabytes string, stop <-chan os.Signal) int {
	n, _ := strconv.Atoi(megabytes)
	begin := time.Now()
	b, err := syscall.Mmap(-1, 0, n<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mmap:", err)
		return 3
	}
	// Huge pages: the fast way.
	_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 14 /* HUGEPAGE */)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
		if i%(64<<20) == 0 {
			fmt.Printf("%d MB after %s\n", i>>20, time.Since(begin))
		}
	}
	<-stop
	return 0
}

func slowly(megabytes string) int {
	n, _ := strconv.Atoi(megabytes)
	var all [][]byte
	for {
		all = append(all, touch(n<<20/10))
		time.Sleep(100 * time.Millisecond)
	}
}

func family(megabytes string, stop <-chan os.Signal) int {
	n, _ := strconv.Atoi(megabytes)
	for range 2 {
		cmd := exec.Command("/proc/self/exe", "grow", strconv.Itoa(n))
		cmd.Args[0] = helperName
		if err := cmd.Start(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	<-stop
	return 0
}

func fill(path, megabytes string, stop <-chan os.Signal) int {
	n, _ := strconv.Atoi(megabytes)
	f, err := os.Create(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	block := make([]byte, 1<<20)
	for range n {
		if _, err := f.Write(block); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	<-stop
	return 0
}
