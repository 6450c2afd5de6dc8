package main

import (
	"testing"
	"testing/fstest"
)

func TestCgroupMemory(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"version 2, in a container": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "536870912\n"}, 512 << 20},
		"version 2, a path of the host": {map[string]string{
			"proc/self/cgroup": "0::/../../kubepods.slice/a.scope\n", "sys/fs/cgroup/memory.max": "536870912\n",
		}, 512 << 20},
		"version 2, a unit": {map[string]string{
			"proc/self/cgroup": "0::/system.slice/ipwitness.service\n", "sys/fs/cgroup/system.slice/ipwitness.service/memory.max": "max\n",
		}, 0},
		"version 2, a slice above it": {map[string]string{
			"proc/self/cgroup": "0::/system.slice/ipwitness.service\n",
			"sys/fs/cgroup/system.slice/ipwitness.service/memory.max": "2000000\n",
			"sys/fs/cgroup/system.slice/memory.max":                   "1000000\n",
		}, 1_000_000},
		"version 1": {map[string]string{
			"proc/self/cgroup": "12:cpu,cpuacct:/\n7:memory:/docker/abc\n0::/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "268435456\n",
		}, 256 << 20},
		"version 1, no limit": {map[string]string{
			"proc/self/cgroup": "7:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 0},
		"none": {nil, 0},
	} {
		root := fstest.MapFS{}
		for file, text := range c.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := cgroupMemory(root); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}
