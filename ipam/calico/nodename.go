package calico

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ipwitness/ipwitness/ipam"
)

// stateDir is the directory in which calico-node keeps nodeNameFile.
const (
	stateDir     = "/var/lib/calico"
	nodeNameFile = stateDir + "/nodename"
)

// nameReader finds the name that Calico's CNI plugin has for the node, as the plugin itself does
// (DetermineNodename in cni-plugin/internal/pkg/utils/utils.go and cmdAdd in cni-plugin/pkg/plugin of
// Calico 3.32): nodename of its configuration, then the content of nodename_file, then the deprecated
// hostname of its configuration, then the name of the host.
type nameReader struct {
	host     ipam.Host
	confDirs []string
	file     string             // nodename_file of configurations that name none
	confs    map[string]*plugin // by file, as last parsed; nil for files without Calico
	named    string             // nodename_file of the configuration in use
}

// plugin has the fields in use of the configuration of a CNI plugin, or of a list of plugins (NetConf
// in cni-plugin/pkg/types/types.go).
type plugin struct {
	Type                 string   `json:"type"`
	Plugins              []plugin `json:"plugins"`   // if this is a list
	Delegates            []plugin `json:"delegates"` // multus
	Nodename             string   `json:"nodename"`
	NodenameFile         string   `json:"nodename_file"`
	NodenameFileOptional bool     `json:"nodename_file_optional"`
	Hostname             string   `json:"hostname"`
	IPAM                 struct {
		Type string `json:"type"`
	} `json:"ipam"`
}

// newNameReader returns a reader that has read nothing yet. The directory of the configuration, if
// there is one, replaces stateDir.
func newNameReader(host ipam.Host, cfg ipam.FilesConfig) ipam.NameReader {
	dir := stateDir
	if len(cfg.Dirs) > 0 {
		dir = cfg.Dirs[0]
	}
	return &nameReader{host: host, confDirs: cfg.CNIConfig, file: filepath.Join(dir, filepath.Base(nodeNameFile))}
}

// Places implements ipam.NameReader.
func (n *nameReader) Places() []string {
	places := append(slices.Clone(n.confDirs), filepath.Dir(n.file))
	if n.named != "" {
		places = append(places, filepath.Dir(n.named))
	}
	return places
}

func (n *nameReader) Read(now time.Time) (name ipam.NodeName, problem string, again bool) {
	conf, at, again, err := n.conf(now)
	if n.named = ""; conf != nil && filepath.IsAbs(conf.NodenameFile) && len(conf.NodenameFile) <= ipam.MaxText {
		n.named = ipam.CleanPath(conf.NodenameFile)
	}
	file := cmp.Or(n.named, n.file)
	inFile, missing, fileErr := n.inFile(file, conf != nil)
	switch {
	case err != nil && !missing:
		return ipam.NodeName{}, fmt.Sprintf("cannot read %s, so the node name under which Calico allocates addresses is unknown (%s): correct the file, or give the agent's user read access to it", at, ipam.OneLine(err)), again
	case err != nil:
		return ipam.NodeName{}, "", again // nothing else indicates that this node has Calico
	case conf != nil && conf.Nodename != "":
		name = ipam.NodeName{Name: conf.Nodename, Source: ipam.ConfName, File: at}
	case fileErr != nil:
		return ipam.NodeName{}, fmt.Sprintf("cannot read %s, which has Calico's name of this node (%s): give the agent's user read access to the file, and mount its directory if the agent runs in a container", file, ipam.OneLine(fileErr)), again
	case inFile != "":
		name = ipam.NodeName{Name: inFile, Source: ipam.FileName, File: file}
	case conf == nil || missing && !conf.NodenameFileOptional:
		return ipam.NodeName{}, "", again // the plugin does not run without the file
	case conf.Hostname != "":
		name = ipam.NodeName{Name: conf.Hostname, Source: ipam.ConfName, File: at}
	default:
		host, err := os.Hostname()
		if err != nil {
			return ipam.NodeName{}, fmt.Sprintf("cannot get the name of the host, under which Calico allocates addresses: %s", ipam.OneLine(err)), again
		}
		name = ipam.NodeName{Name: strings.ToLower(host), Source: ipam.HostName, File: file}
	}
	const most = 253
	if len(name.Name) > most || !utf8.ValidString(name.Name) {
		return ipam.NodeName{}, fmt.Sprintf("%s contains no valid node name, but Calico allocates addresses under the name in it: write the name of this node into it", name.File), again
	}
	return name, "", again
}

// inFile returns the content of the file with the node's name; missing if there is no such file. If
// Calico is configured, it is an error if the file is not visible.
func (n *nameReader) inFile(file string, configured bool) (name string, missing bool, err error) {
	const most = 1 << 20
	data, _, err := n.host.ReadFile(file, true, most)
	if errors.Is(err, os.ErrNotExist) {
		if configured {
			return "", true, n.host.Visible(filepath.Dir(file))
		}
		return "", true, nil
	}
	return strings.TrimSpace(string(data)), false, err
}

// conf returns the first configuration that uses Calico's IPAM, which is the one that the runtime
// uses, and its file. The error is that of an earlier file which cannot be read. If a file cannot be
// parsed, its previous content counts.
func (n *nameReader) conf(now time.Time) (found *plugin, file string, again bool, err error) {
	parsed := map[string]*plugin{}
	for _, f := range ipam.ConfFiles(n.host, n.confDirs) {
		p, unread := &plugin{}, f.Err
		if unread == nil {
			unread = json.Unmarshal(f.Data, p)
			if _, other := errors.AsType[*json.UnmarshalTypeError](unread); other {
				unread = nil // fields of another form belong to another plugin
			}
		}
		before, known := n.confs[f.Path]
		switch {
		case unread == nil:
			parsed[f.Path] = p.calico()
		case known:
			parsed[f.Path] = before
		case ipam.BeingWritten(f.Written, now):
		case found == nil && err == nil:
			file, err = f.Path, unread
		}
		again = again || unread != nil && ipam.BeingWritten(f.Written, now)
		if p := parsed[f.Path]; p != nil && found == nil && err == nil {
			found, file = p, f.Path
		}
	}
	n.confs = parsed
	return found, file, again, err
}

// calico returns the plugin in a configuration that uses Calico's IPAM; nil if there is none.
func (p *plugin) calico() *plugin {
	if p.Type == "calico" && p.IPAM.Type == "calico-ipam" {
		return p
	}
	for _, plugins := range [][]plugin{p.Plugins, p.Delegates} {
		for i := range plugins {
			if found := plugins[i].calico(); found != nil {
				return found
			}
		}
	}
	return nil
}
