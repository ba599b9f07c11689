// Command etcd is upstream's server, whose main package is in a module that
// nothing else here needs.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
