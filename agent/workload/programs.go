package workload

import (
	"slices"
	"sync"
)

// vipPrograms are the programs that move virtual addresses between nodes on their own, by the names
// of their processes. Programs that run on every node and obey a controller are not among them.
var vipPrograms = []string{"keepalived", "kube-vip", "vrrpd", "ucarp", "uvrrpd"}

// VIPProgram is the program in the agent's namespace that moves virtual addresses between nodes.
type VIPProgram struct {
	mu    sync.Mutex
	name  string
	ended bool
	// Changed is called after a program started or ended; set before run.
	Changed func()
}

// State returns the name of the program, and whether it has ended; empty if none was seen.
func (v *VIPProgram) State() (name string, ended bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.name, v.ended
}

// found sets the program that runs now; empty if none does.
func (v *VIPProgram) found(running string) {
	v.mu.Lock()
	name, ended := running, false
	if running == "" {
		name, ended = v.name, v.name != ""
	}
	changed := name != v.name || ended != v.ended
	v.name, v.ended = name, ended
	v.mu.Unlock()
	if changed && v.Changed != nil {
		v.Changed()
	}
}

// earlier returns the name that comes first in vipPrograms; other if name is not in it.
func earlier(name, other string) string {
	i, k := slices.Index(vipPrograms, name), slices.Index(vipPrograms, other)
	if i >= 0 && (k < 0 || i < k) {
		return name
	}
	return other
}
