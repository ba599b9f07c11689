package step

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"berth.dev/berth/bench/internal/deliver"
	"berth.dev/berth/bench/internal/link"
	"berth.dev/berth/bench/internal/sequence"
	"berth.dev/berth/bench/internal/tools"
	"berth.dev/berth/bench/internal/window"
)

// First arguments that start this program as one of its parts.
const (
	Arg         = "step"
	MachineArg  = "machine"
	UnpackArg   = "unpack"
	RemoveArg   = "remove"
	windowArg   = "window"
	DeliverArg  = "deliver"
	UsageArg    = "usage"
	SequenceArg = "sequence"
)

// Main runs one of the parts if the first argument selects one, and returns its exit code.
// is reports whether it ran a part.
func Main(args []string) (code int, is bool) {
	if len(args) == 0 {
		return 0, false
	}
	var err error
	switch args[0] {
	case Arg:
		code, err = run(args[1:])
	case windowArg:
		code, err = window.Run(args[1:])
	case MachineArg:
		err = json.NewEncoder(os.Stdout).Encode(inspect())
	case UnpackArg:
		_, err = tools.Unpack(args[1])
	case RemoveArg:
		err = tools.Remove(args[1])
	case DeliverArg:
		err = deliver.Main(context.Background(), args[1])
	case SequenceArg:
		err = sequence.Main(context.Background(), args[1])
	case link.GuardArg:
		err = link.Guard(os.Stdin, os.Stdout)
	case UsageArg:
		var seconds float64
		seconds, err = deliver.Usage()
		fmt.Println(seconds)
	default:
		return 0, false
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-bench:", err)
		return 70, true
	}
	return code, true
}

func run(args []string) (int, error) {
	flags := flag.NewFlagSet(Arg, flag.ContinueOnError)
	archive := flags.String("image", "", "")
	through := flags.Int("through", 0, "")
	port := flags.Int("listening", 0, "")
	noted := flags.Bool("window", false, "")
	usage := flags.Bool("usage", false, "")
	if err := flags.Parse(args); err != nil {
		return 0, err
	}
	if *usage {
		seconds, err := deliver.Usage()
		if err != nil {
			return 0, err
		}
		if err := os.Setenv(sequence.UsageBefore, fmt.Sprint(seconds)); err != nil {
			return 0, err
		}
	}
	if *port != 0 {
		go reportListening(*port)
	}
	if *through >= flags.NArg() {
		return 0, fmt.Errorf("there is no program among %q", flags.Args())
	}
	return Run(*archive, flags.Args()[:*through], flags.Args()[*through:], *noted)
}
