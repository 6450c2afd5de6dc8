package calico_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// written is when all files were last written.
var written = time.Unix(1_700_000_000, 0)

// nameLab has the files from which Calico's name of a node is read.
type nameLab struct {
	t              *testing.T
	host           ipamtest.Host
	one, two, file string // two directories of configurations, and the file with the name
	reader         ipam.NameReader
	now            time.Time
}

func newNameLab(t *testing.T) *nameLab {
	root := t.TempDir()
	l := &nameLab{t: t, host: ipamtest.NewHost(), one: filepath.Join(root, "one"), two: filepath.Join(root, "two"), file: filepath.Join(root, "calico", "nodename"), now: written.Add(time.Hour)}
	for _, dir := range []string{l.one, l.two, filepath.Dir(l.file)} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	l.reader = calico.IPAM.NodeName(l.host, ipam.FilesConfig{Dirs: []string{filepath.Dir(l.file)}, CNIConfig: []string{l.one, l.two}})
	return l
}

// write writes a file; no content removes it.
func (l *nameLab) write(path, content string) {
	l.t.Helper()
	err := os.Remove(path)
	if content != "" {
		err = errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chtimes(path, written, written))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		l.t.Fatal(err)
	}
}

// conflist is a configuration of Calico 3.32 as its install-cni writes it, with more options.
func conflist(options string) string {
	return `{"name": "k8s-pod-network", "cniVersion": "0.3.1", "plugins": [
		{"type": "calico", "datastore_type": "kubernetes", "mtu": 0, "ipam": {"type": "calico-ipam"}, "policy": {"type": "k8s"}` + options + `},
		{"type": "portmap", "snat": true, "hostname": {}, "capabilities": {"portMappings": true}}]}`
}

func (l *nameLab) want(what string, want ipam.NodeName, problem string) {
	l.t.Helper()
	got, p, again := l.reader.Read(l.now)
	if got != want || (p == "") != (problem == "") || !strings.Contains(p, problem) || again {
		l.t.Errorf("%s: got %+v, problem %q, again %t; want %+v, problem %q", what, got, p, again, want, problem)
	}
}

func TestNameIsTheOneThatThePluginDetermines(t *testing.T) {
	l := newNameLab(t)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	conf, other, named := filepath.Join(l.one, "10-calico.conflist"), filepath.Join(l.one, "20-old.conflist"), filepath.Join(l.two, "named")
	none := ipam.NodeName{}
	inFile := func(name string) ipam.NodeName { return ipam.NodeName{Name: name, Source: ipam.FileName, File: l.file} }
	inConf := func(name string) ipam.NodeName { return ipam.NodeName{Name: name, Source: ipam.ConfName, File: conf} }

	l.want("nothing", none, "")
	l.write(l.file, " worker-1\r\n")
	l.want("the file alone", inFile("worker-1"), "")
	l.write(conf, `{"name": "net", "type": "calico", "nodename": "other", "ipam": {"type": "host-local"}}`)
	l.want("a configuration with another IPAM", inFile("worker-1"), "")
	l.write(conf, conflist(`, "nodename": "template-0"`))
	l.want("both", inConf("template-0"), "")
	l.write(other, conflist(`, "nodename": "older"`))
	l.want("two configurations", inConf("template-0"), "")
	l.write(other, "")
	l.write(conf, conflist(`, "nodename_file_optional": true, "hostname": "deprecated"`))
	l.want("a configuration without a name", inFile("worker-1"), "")
	l.write(l.file, " ")
	l.want("an empty file", inConf("deprecated"), "")
	l.write(l.file, "")
	l.want("no file", inConf("deprecated"), "")
	l.write(conf, conflist(`, "nodename_file_optional": true`))
	l.want("the name of the host", ipam.NodeName{Name: strings.ToLower(host), Source: ipam.HostName, File: l.file}, "")
	l.write(conf, conflist(""))
	l.want("the plugin does not run without the file", none, "")
	l.write(conf, conflist(`, "nodename_file": "`+named+`"`))
	l.write(named, "worker-2")
	l.want("another file", ipam.NodeName{Name: "worker-2", Source: ipam.FileName, File: named}, "")
	if places := l.reader.Places(); places[len(places)-1] != l.two {
		t.Errorf("got places %q, want that of the other file", places)
	}
	l.write(named, "")
	l.write(conf, `{"name": "multus", "type": "multus", "delegates": [`+conflist(`, "nodename": "worker-3"`)+"]}")
	l.want("a delegate of multus", inConf("worker-3"), "")
	linked := filepath.Join(l.two, "linked")
	l.write(linked, conflist(`, "nodename": "worker-5"`))
	l.write(conf, "")
	if err := os.Symlink(linked, conf); err != nil {
		t.Fatal(err)
	}
	l.want("a symbolic link, which libcni follows", inConf("worker-5"), "")
	l.write(conf, "")
	conf = filepath.Join(l.two, "10-calico.conf")
	l.write(conf, `{"name": "net", "type": "calico", "nodename": "worker-4", "ipam": {"type": "calico-ipam"}}`)
	l.want("another directory", inConf("worker-4"), "")
}

func TestNameThatCannotBeReadIsUnknown(t *testing.T) {
	l := newNameLab(t)
	conf := filepath.Join(l.one, "10-calico.conflist")
	none, found := ipam.NodeName{}, ipam.NodeName{Name: "worker-1", Source: ipam.ConfName, File: conf}

	l.write(conf, "{")
	l.want("nothing indicates Calico", none, "")
	l.write(l.file, "worker-1")
	l.want("the configuration may contain a name", none, conf)
	l.write(conf, conflist(`, "nodename": "worker-1"`))
	l.want("it does", found, "")
	l.write(conf, "{")
	l.want("its previous content", found, "")
	l.host.Broken[conf] = os.ErrPermission
	l.want("its previous content, without permission", found, "")
	l.reader = calico.IPAM.NodeName(l.host, ipam.FilesConfig{Dirs: []string{filepath.Dir(l.file)}, CNIConfig: []string{l.one}})
	l.want("without permission", none, "read access")
	delete(l.host.Broken, conf)
	l.host.Broken[l.one] = os.ErrPermission
	l.want("a directory without permission", none, l.one)
	delete(l.host.Broken, l.one)

	// A configuration that is being written.
	if _, problem, again := l.reader.Read(written); problem != "" || !again {
		t.Errorf("a file that is being written: got problem %q, again %t", problem, again)
	}
	l.write(conf, conflist(""))
	for content, want := range map[string]string{strings.Repeat("x", 253): "", strings.Repeat("x", 254): "no valid node name", "\xff": "no valid node name"} {
		l.write(l.file, content)
		name := ipam.NodeName{Name: content, Source: ipam.FileName, File: l.file}
		if want != "" {
			name = none
		}
		l.want("content", name, want)
	}
	l.host.Broken[l.file] = os.ErrPermission
	l.want("the file without permission", none, "read access")
	delete(l.host.Broken, l.file)
	l.write(l.file, "")
	l.host.Hidden[filepath.Dir(l.file)] = errors.New("mount it")
	l.want("the directory is not mounted", none, "mount it")
	l.write(conf, conflist(`, "nodename": "worker-1"`))
	l.want("the file does not matter", found, "")
}
