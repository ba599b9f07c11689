package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// checkTimeout limits the search for an order of the operations.
const checkTimeout = 5 * time.Minute

func check(folder string) error {
	all, err := readHistory(folder)
	if err != nil {
		return err
	}
	made := map[string]int{}
	var writes []int64
	for _, o := range all {
		switch {
		case o.Returned == 0:
			made["unknown"]++
		case o.Conflict:
			made["conflict"]++
		default:
			made[o.Kind]++
			if o.Kind != "read" {
				writes = append(writes, o.Returned)
			}
		}
	}
	slices.Sort(writes)
	fmt.Printf("%d reads, %d writes, %d swaps, %d conflicts, %d unknown, longest time without an acknowledged write %.1f s: ",
		made["read"], made["write"], made["swap"], made["conflict"], made["unknown"], longestGap(writes).Seconds())
	switch verdict, key := judge(all); verdict {
	case porcupine.Ok:
		fmt.Println("linearizable")
		return nil
	case porcupine.Unknown:
		fmt.Println("not judged")
		return fmt.Errorf("no order of the operations on %s was found in %v", key, checkTimeout)
	default:
		fmt.Println("NOT linearizable")
		return fmt.Errorf("no order of the operations on %s explains what was read", key)
	}
}

// judge returns the worst result, and the key that has it.
func judge(all []operation) (porcupine.CheckResult, string) {
	clients := map[string]int{}
	history := map[string][]porcupine.Operation{}
	for _, o := range all {
		if o.Returned == 0 {
			if o.Kind == "read" {
				continue
			}
			o.Returned = math.MaxInt64
		}
		if _, ok := clients[o.Client]; !ok {
			clients[o.Client] = len(clients)
		}
		history[o.Key] = append(history[o.Key], porcupine.Operation{
			ClientId: clients[o.Client], Input: o, Call: o.Called, Return: o.Returned,
		})
	}
	unknown := ""
	for _, key := range keys {
		switch porcupine.CheckOperationsTimeout(register, history[key], checkTimeout) {
		case porcupine.Illegal:
			return porcupine.Illegal, key
		case porcupine.Unknown:
			unknown = key
		}
	}
	if unknown != "" {
		return porcupine.Unknown, unknown
	}
	return porcupine.Ok, ""
}

// register defines which operations are possible with a value, and what the value is then. A
// swap of unknown result has no effect where another value is found, so that one that never
// took place comes last.
var register = porcupine.Model{
	Init: func() any { return initial },
	Step: func(state, input, _ any) (bool, any) {
		o := input.(operation)
		switch found := state.(string); {
		case o.Kind == "read":
			return o.Value == found, found
		case o.Kind == "write":
			return true, o.Value
		case o.Conflict:
			return o.Expected != found, found
		case o.Expected == found:
			return true, o.Value
		default:
			return o.Returned == math.MaxInt64, found
		}
	},
	DescribeOperation: func(input, _ any) string {
		o := input.(operation)
		return strings.TrimSpace(fmt.Sprintf("%s %s %s", o.Kind, o.Expected, o.Value))
	},
}
