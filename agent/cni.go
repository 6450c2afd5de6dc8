package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/files"
	"github.com/ipwitness/ipwitness/agent/form"
	"github.com/ipwitness/ipwitness/agent/kernel"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// cniFile is what a file of libcni's result cache says.
type cniFile struct {
	version  files.Version // of the file
	netns    []string      // paths of the sandbox
	workload *ipwitnessv1.Workload
	networks map[string]kernel.Networks // by path of the sandbox: what a pod was given there
}

// ofMultus begins the names of results that are Multus': it has a cache of its own, with
// what each of the plugins gave that it calls. The container runtime's has Multus' name
// for the network, and the first interface only.
const ofMultus = "multus/"

// multusResults is that cache: "cniDir" of Multus, and libcni's directory in it.
func (n *names) multusResults() string {
	return filepath.Join(filepath.Dir(n.cniResults), "multus", "results")
}

// resultPath is the path of a result by its name.
func (n *names) resultPath(name string) string {
	if rest, ok := strings.CutPrefix(name, ofMultus); ok {
		return filepath.Join(n.multusResults(), rest)
	}
	return filepath.Join(n.cniResults, name)
}

// watchResults wakes the search whenever a CNI result comes or goes. The
// directories may be missing, and may come later: their parents are watched.
func (n *names) watchResults(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		n.log.Warn("cannot watch CNI results: pods get their names late", "error", err)
		return nil
	}
	defer func() { _ = w.Close() }()
	dirs := map[string]string{n.cniResults: "", n.multusResults(): ofMultus}
	watch := func() {
		for results := range dirs {
			for dir := results; ; dir = filepath.Dir(dir) {
				if err := w.Add(dir); err == nil && dir != results {
					break // the deepest parent that there is, so that its child is heard
				}
				if dir == filepath.Dir(dir) {
					break
				}
			}
		}
	}
	watch()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-w.Events:
			if !ok {
				return nil
			}
			onTheWay := false
			for results := range dirs {
				onTheWay = onTheWay || files.Within(results, e.Name)
			}
			if onTheWay {
				watch()
			}
			prefix, isResult := dirs[filepath.Dir(e.Name)]
			switch {
			case isResult:
				n.mu.Lock()
				n.stale[prefix+filepath.Base(e.Name)] = true
				n.mu.Unlock()
			case onTheWay:
				n.forgetResults()
			default:
				continue
			}
			n.wake()
		case err := <-w.Errors:
			n.log.Debug("events about CNI results were lost", "error", err)
			n.forgetResults()
			n.wake()
		}
	}
}

// forgetResults has all results read again.
func (n *names) forgetResults() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = true
}

// readResults reads what changed of libcni's result caches. A missing one is no error.
func (n *names) readResults() {
	n.mu.Lock()
	stale, all := n.stale, n.all
	n.stale, n.all = map[string]bool{}, false
	n.mu.Unlock()
	if all {
		there := map[string]bool{}
		for dir, prefix := range map[string]string{n.cniResults: "", n.multusResults(): ofMultus} {
			entries, _ := files.ReadDir(dir)
			for name := range entries {
				there[prefix+name] = true
			}
		}
		maps.DeleteFunc(n.results, func(name string, _ cniFile) bool { return !there[name] })
		for name := range there {
			if old, ok := n.results[name]; !ok || files.VersionOf(n.resultPath(name)) != old.version {
				stale[name] = true
			}
		}
	}
	for name := range stale {
		delete(n.results, name)
		path := n.resultPath(name)
		v := files.VersionOf(path) // before its content, which may be a newer one
		data, err := files.ReadSmall(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		var f cniFile
		if err == nil {
			f, err = parseResult(data)
		}
		if err != nil {
			// Half written: its next event brings the rest.
			n.log.Debug("cannot read CNI result", "file", name, "error", err)
			continue
		}
		f.version = v
		n.results[name] = f
	}
}

// cniResult is a file of libcni's cache (cniCacheV1, libcni/api.go of
// github.com/containernetworking/cni), with a result of any version.
type cniResult struct {
	ContainerID string      `json:"containerId"`
	IfName      string      `json:"ifName"`
	NetworkName string      `json:"networkName"`
	NetNS       string      `json:"netns"`
	CNIArgs     [][2]string `json:"cniArgs"`
	Result      struct {
		Interfaces []struct {
			Name    string `json:"name"`
			Sandbox string `json:"sandbox"`
		} `json:"interfaces"`
		IPs []struct {
			Interface *int   `json:"interface"`
			Address   string `json:"address"`
		} `json:"ips"`
		// Until 0.2.0.
		IP4 struct {
			IP string `json:"ip"`
		} `json:"ip4"`
		IP6 struct {
			IP string `json:"ip"`
		} `json:"ip6"`
	} `json:"result"`
}

// parseResult reads one file of libcni's cache.
func parseResult(data []byte) (cniFile, error) {
	var c cniResult
	if err := json.Unmarshal(data, &c); err != nil {
		return cniFile{}, fmt.Errorf("parse CNI result: %w", err)
	}
	w := &ipwitnessv1.Workload{
		Kind:        ipwitnessv1.Workload_CONTAINER,
		Name:        c.ContainerID,
		ContainerId: c.ContainerID,
		Source:      "cni-result",
	}
	for _, arg := range c.CNIArgs {
		switch arg[0] {
		case "K8S_POD_NAMESPACE":
			w.Namespace = arg[1]
		case "K8S_POD_NAME":
			w.Kind, w.Name = ipwitnessv1.Workload_POD, arg[1]
		case "K8S_POD_UID":
			w.Uid = arg[1]
		}
	}
	for _, text := range []string{w.GetNamespace(), w.GetName(), w.GetUid(), w.GetContainerId()} {
		// An aggregator would refuse all that the node tells.
		if len(text) > form.MaxLength {
			return cniFile{}, fmt.Errorf("parse CNI result: a name has %d bytes, %d are possible", len(text), form.MaxLength)
		}
	}
	f := cniFile{workload: w}
	add := func(path string) {
		if path != "" {
			f.netns = append(f.netns, files.Clean(path))
		}
	}
	add(c.NetNS)
	for _, i := range c.Result.Interfaces {
		add(i.Sandbox)
	}
	if w.Kind == ipwitnessv1.Workload_POD && c.isPodNetwork() {
		f.networks = c.networks()
	}
	return f, nil
}

// isPodNetwork tells whether the network may be one of pods: podman has such
// results, too, but its bridges are worlds of their own on each host.
func (c *cniResult) isPodNetwork() bool {
	if c.NetworkName == "podman" || !form.IsNetworkName(c.NetworkName) {
		return false
	}
	for _, i := range c.Result.Interfaces {
		if i.Sandbox == "" && strings.HasPrefix(i.Name, "cni-podman") {
			return false
		}
	}
	return true
}

// networks gives the addresses of the result, by sandbox.
func (c *cniResult) networks() map[string]kernel.Networks {
	all := map[string]kernel.Networks{}
	add := func(sandbox, iface, address string) {
		prefix, err := netip.ParsePrefix(address)
		if err != nil || prefix.Addr().IsLoopback() || sandbox == "" || iface == "" || len(iface) >= unix.IFNAMSIZ {
			return
		}
		path := files.Clean(sandbox)
		if all[path] == nil {
			all[path] = kernel.Networks{}
		}
		all[path][kernel.InterfaceAddress{Interface: iface, Addr: prefix.Addr().Unmap()}] = c.NetworkName
	}
	add(c.NetNS, c.IfName, c.Result.IP4.IP)
	add(c.NetNS, c.IfName, c.Result.IP6.IP)
	for _, ip := range c.Result.IPs {
		switch i := ip.Interface; {
		case i == nil: // that which was asked for
			add(c.NetNS, c.IfName, ip.Address)
		case *i >= 0 && *i < len(c.Result.Interfaces): // none of the host's: it has no sandbox
			add(c.Result.Interfaces[*i].Sandbox, c.Result.Interfaces[*i].Name, ip.Address)
		}
	}
	return all
}
