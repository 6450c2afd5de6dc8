package awsvpc

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// A pod with security groups of its own has the address of a branch ENI. The VPC resource controller
// assigns that address, and ipamd does not record it. On the node, only the result of the CNI plugin
// shows it: the plugin adds an interface that does not exist, whose MAC is the VLAN ID of the branch
// ENI, or 0 for other pods (cmd/routed-eni-cni-plugin/cni.go).

// branchPods has the addresses of the pods with branch ENIs.
type branchPods struct {
	host  ipam.Host
	dir   string                  // libcni's results
	known map[string][]netip.Addr // by name of the result; empty for other pods
	stale map[string]bool         // names of results that have changed
	fault error                   // why not all results are known
}

const (
	// resultsDir is libcni's directory of results.
	resultsDir = "/var/lib/cni/results"
	// maxResults limits the results that are listed, and maxResultSize the size of each that is read.
	maxResults    = 1 << 16
	maxResultSize = 1 << 18
	// dummyPrefix begins the name of the interface that does not exist.
	dummyPrefix = "dummy"
)

// read reads the results of a network that have changed, or whose names are new if any may have changed, or
// all of them if events were lost. It returns true if addresses may have changed.
func (b *branchPods) read(network string, r ipam.FileRead) (changed bool) {
	if r.All || r.Lost {
		names := map[string]bool{}
		entries, err := ipam.Entries(b.host, b.dir, maxResults)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), network+"-") {
				names[e.Name()] = true
			}
		}
		b.fault = err
		for name := range b.known {
			if r.Lost || !names[name] && b.fault == nil {
				b.stale[name] = true
			}
		}
		for name := range names {
			if _, known := b.known[name]; !known {
				b.stale[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.stale)) {
		changed = changed || len(b.known[name]) > 0
		delete(b.known, name)
		if !strings.HasPrefix(name, network+"-") {
			continue
		}
		data, written, err := b.host.ReadFile(filepath.Join(b.dir, name), false, maxResultSize)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			b.known[name], err = branchAddresses(data)
		}
		if err != nil {
			if delete(b.known, name); !ipam.BeingWritten(written, r.Now) { // the next list has it again
				b.fault = fmt.Errorf("%s: %w", name, err)
			}
		}
		changed = changed || len(b.known[name]) > 0
	}
	clear(b.stale)
	return changed
}

// branchAddresses returns the addresses in a file of libcni's cache if they are of a branch ENI.
func branchAddresses(data []byte) (addresses []netip.Addr, err error) {
	var c struct {
		Result struct {
			Interfaces []struct {
				Name string `json:"name"`
				MAC  string `json:"mac"`
			} `json:"interfaces"`
			IPs []struct {
				Address string `json:"address"`
			} `json:"ips"`
		} `json:"result"`
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("parse CNI result: %w", err)
	}
	branch := false
	for _, i := range c.Result.Interfaces {
		vlan, err := strconv.ParseUint(i.MAC, 10, 12)
		branch = branch || strings.HasPrefix(i.Name, dummyPrefix) && err == nil && vlan != 0
	}
	if !branch {
		return nil, nil
	}
	for _, ip := range c.Result.IPs {
		if p, err := netip.ParsePrefix(ip.Address); err == nil {
			addresses = append(addresses, p.Addr().Unmap())
		}
	}
	return addresses, nil
}
