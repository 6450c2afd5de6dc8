package workload

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/utils"
	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/kernel"
	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/ipam"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// maxResult is larger than any file of a result cache.
const maxResult = 1 << 20

// A cniCache has the parsed contents of the result caches of libcni and Multus.
type cniCache struct {
	log     *slog.Logger
	dir     string             // directory of libcni's cache
	changed func()             // called when results may have changed
	results map[string]cniFile // by file name: see ofMultus
	broken  map[string]broken  // files without a result, by name
}

func newCNICache(log *slog.Logger, dir string, changed func()) *cniCache {
	return &cniCache{log: log, dir: dir, changed: changed, results: map[string]cniFile{}, broken: map[string]broken{}}
}

// cniFile is a parsed file of libcni's result cache.
type cniFile struct {
	version  fileVersion // of the file that was parsed
	netns    []string    // paths of the sandbox
	workload *ipwitnessv1.Workload
	networks map[string]kernel.Networks // networks of the pod's addresses, by path of the sandbox
	unparsed error                      // an address cannot be parsed
}

// broken is a file that was read and has no result.
type broken struct {
	version fileVersion
	err     error
	since   time.Time // when it was read; zero if it is complete
}

// writtenWithin is how long a file may have no result because it is still being written.
const writtenWithin = 10 * time.Second

// damage returns the error of files whose results are lost; nil if there are none.
func (c *cniCache) damage() error {
	var names []string
	for name, b := range c.broken {
		if time.Since(b.since) >= writtenWithin {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	first := slices.Min(names)
	return fmt.Errorf("%d files, such as %s: %w", len(names), c.path(first), c.broken[first].err)
}

// ofMultus is the prefix of the names of Multus' results. Multus has its own cache, with the
// result of each plugin that it calls. Its result in the container runtime's cache only has
// the first interface, and Multus' own name of the network.
const ofMultus = "multus/"

// multusDir returns the directory of Multus' cache: libcni's directory below Multus' "cniDir".
func (c *cniCache) multusDir() string {
	return filepath.Join(filepath.Dir(c.dir), "multus", "results")
}

// dirs returns the directories of results, with the prefixes of the names of results there.
func (c *cniCache) dirs() map[string]string {
	return map[string]string{c.dir: "", c.multusDir(): ofMultus}
}

func (c *cniCache) path(name string) string {
	if rest, ok := strings.CutPrefix(name, ofMultus); ok {
		return filepath.Join(c.multusDir(), rest)
	}
	return filepath.Join(c.dir, name)
}

const notWatchedResults = "pods get their names late, because the results of CNI are not watched"

// watch calls changed at the start, and after each event about a result or a directory that leads to results, until ctx ends.
func (c *cniCache) watch(ctx context.Context, lacks *Lacks) error {
	var w *fsnotify.Watcher
	var lost <-chan error
	if err := lacks.Until(ctx, notWatchedResults, func() (err error) { w, lost, err = table.NewWatcher(0); return err }); err != nil {
		c.log.Warn(notWatchedResults, "error", err)
		return nil
	}
	defer func() { _ = w.Close() }()
	again := time.NewTicker(lackEvery)
	defer again.Stop()
	dirs := slices.Collect(maps.Keys(c.dirs()))
	watch := func() {
		for _, dir := range dirs {
			watchPath(w, dir)
		}
	}
	watch()
	c.changed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
			watch() // there may have been no watches left
		case e := <-w.Events:
			leads := slices.ContainsFunc(dirs, func(dir string) bool { return table.Within(dir, e.Name) })
			if leads {
				watch() // directories may be new
			}
			if leads || slices.Contains(dirs, filepath.Dir(e.Name)) {
				c.changed()
			}
		case err := <-lost:
			c.log.Debug("events about CNI results were lost", "error", err)
			c.changed()
		}
	}
}

// read reads the results that are new or have changed. A missing cache is not an error. If a resource is exhausted, what was
// read before still counts, and the error is returned.
func (c *cniCache) read() (lack error) {
	there := map[string]bool{}
	for dir, prefix := range c.dirs() {
		entries, err := readDir(dir)
		if table.Lack(err) != "" {
			return err
		}
		for name := range entries {
			there[prefix+name] = true
		}
	}
	maps.DeleteFunc(c.results, func(name string, _ cniFile) bool { return !there[name] })
	maps.DeleteFunc(c.broken, func(name string, _ broken) bool { return !there[name] })
	for name := range there {
		path := c.path(name)
		v := versionOf(path) // before the content, which may then be newer but not older
		if v == c.results[name].version || v == c.broken[name].version {
			continue
		}
		data, _, err := table.ReadRegular(path, unix.O_NOFOLLOW, maxResult)
		if table.Lack(err) != "" {
			lack = err
			continue
		}
		delete(c.results, name)
		delete(c.broken, name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		var f cniFile
		if err == nil {
			f, err = parseResult(data)
		}
		if err != nil {
			// The file may be incomplete. In that case another event follows.
			c.log.Debug("cannot read CNI result", "file", name, "error", err)
			c.broken[name] = broken{v, err, time.Now()}
			continue
		}
		if f.unparsed != nil {
			c.broken[name] = broken{v, f.unparsed, time.Time{}}
		}
		f.version = v
		c.results[name] = f
	}
	return lack
}

// cniResult is a file of libcni's cache (cniCacheV1, libcni/api.go of
// github.com/containernetworking/cni), with a result of any version.
type cniResult struct {
	Kind        string      `json:"kind"`
	ContainerID string      `json:"containerId"`
	IfName      string      `json:"ifName"`
	NetworkName string      `json:"networkName"`
	NetNS       string      `json:"netns"`
	CNIArgs     [][2]string `json:"cniArgs"`
	Config      any         `json:"config"` // base64
	Result      struct {
		Interfaces []struct {
			Name    string `json:"name"`
			Sandbox string `json:"sandbox"`
		} `json:"interfaces"`
		IPs []struct {
			Interface *int   `json:"interface"`
			Address   string `json:"address"`
		} `json:"ips"`
		// Format until version 0.2.0.
		IP4 struct {
			IP string `json:"ip"`
		} `json:"ip4"`
		IP6 struct {
			IP string `json:"ip"`
		} `json:"ip6"`
	} `json:"result"`
}

func parseResult(data []byte) (cniFile, error) {
	var c cniResult
	if err := json.Unmarshal(data, &c); err != nil {
		return cniFile{}, fmt.Errorf("parse CNI result: %w", err)
	}
	if c.Kind != "" && c.Kind != "cniCacheV1" {
		return cniFile{}, fmt.Errorf("parse CNI result: the kind %q is not known", c.Kind)
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
		// An aggregator would reject the whole message.
		if len(text) > table.MaxLength {
			return cniFile{}, fmt.Errorf("parse CNI result: a name has %d bytes, but the limit is %d", len(text), table.MaxLength)
		}
	}
	f := cniFile{workload: w}
	add := func(path string) {
		if path != "" {
			f.netns = append(f.netns, ipam.CleanPath(path))
		}
	}
	add(c.NetNS)
	for _, i := range c.Result.Interfaces {
		add(i.Sandbox)
	}
	// Podman also leaves results of pods, but its bridges are separate networks on each host.
	podman := c.NetworkName == "podman"
	for _, i := range c.Result.Interfaces {
		podman = podman || i.Sandbox == "" && strings.HasPrefix(i.Name, "cni-podman")
	}
	const most = 253
	if w.Kind == ipwitnessv1.Workload_POD && !podman && len(c.NetworkName) <= most && utils.ValidateNetworkName(c.NetworkName) == nil {
		f.networks, f.unparsed = c.networks()
	}
	return f, nil
}

// takenAlong reports whether the addresses are those that a device of the node had: since version 1.10, the
// plugin host-device copies them into the pod if it is told to.
func (c *cniResult) takenAlong() bool {
	type plugin struct {
		Type                string `json:"type"`
		UseInterfaceNetwork bool   `json:"useInterfaceNetwork"`
	}
	var config struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	text, _ := c.Config.(string)
	raw, _ := base64.StdEncoding.DecodeString(text)
	_ = json.Unmarshal(raw, &config) // without a configuration, it is not known
	return slices.ContainsFunc(append(config.Plugins, config.plugin), func(p plugin) bool { return p.Type == "host-device" && p.UseInterfaceNetwork })
}

// networks returns the addresses of the result, by sandbox, and the error about the last one that cannot be parsed.
func (c *cniResult) networks() (all map[string]kernel.Networks, unparsed error) {
	network := table.Network{Name: c.NetworkName, TakenAlong: c.takenAlong()}
	all = map[string]kernel.Networks{}
	add := func(sandbox, iface, address string) {
		prefix, err := netip.ParsePrefix(address)
		if err != nil && address != "" {
			unparsed = fmt.Errorf("parse CNI result: %q is not an address with the length of its prefix", address)
		}
		if err != nil || prefix.Addr().IsLoopback() || sandbox == "" || iface == "" || len(iface) >= unix.IFNAMSIZ {
			return
		}
		path := ipam.CleanPath(sandbox)
		if all[path] == nil {
			all[path] = kernel.Networks{}
		}
		all[path][kernel.InterfaceAddress{Interface: iface, Addr: prefix.Addr().Unmap()}] = network
	}
	add(c.NetNS, c.IfName, c.Result.IP4.IP)
	add(c.NetNS, c.IfName, c.Result.IP6.IP)
	for _, ip := range c.Result.IPs {
		switch i := ip.Interface; {
		case i == nil: // the requested interface
			add(c.NetNS, c.IfName, ip.Address)
		case *i >= 0 && *i < len(c.Result.Interfaces): // interfaces of the host have no sandbox
			add(c.Result.Interfaces[*i].Sandbox, c.Result.Interfaces[*i].Name, ip.Address)
		}
	}
	return all, unparsed
}
