// Command cpus prints how many CPUs a Go program counts, and how many it uses.
package main

import (
	"fmt"
	"runtime"
)

func main() { fmt.Println(runtime.NumCPU(), runtime.GOMAXPROCS(0)) }
