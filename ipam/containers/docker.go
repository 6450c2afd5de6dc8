package containers

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// DockerName is the name of docker in the API.
const DockerName = "docker"

// Docker describes the networks of docker: the addresses that dockerd has given to containers, and the
// names of the containers. Its files are below docker's data root; docker's socket is not used.
//
// dockerd keeps its allocations in memory, and restores them from the database when it starts. It frees
// an address when the container stops, and a container that starts again gets the lowest free one.
var Docker = engine{
	name: DockerName, database: defaultRoot + "/network/files/local-kv.db", mount: "/var/lib",
	files:   newDocker,
	exclude: "create the network again with --aux-address (docker network create), or, for network bridge, set fixed-cidr in /etc/docker/daemon.json to a range without it",
	enlarge: "Remove stopped services and unused containers, or create the network again with a larger subnet (docker network create --subnet; for network bridge, bip in /etc/docker/daemon.json).",
	search:  "Find out what removed or replaced " + defaultRoot + "/network/files/local-kv.db: a restored backup, or a clean-up script. Do not restart dockerd and start no containers until no address is at risk.",
	// A dockerd that has lost the record of its sandbox leaves the network namespace behind, with the
	// address. The namespace of containers in the host's network is called default.
	restart: func(node, id string) []advice.Action {
		id = advice.Argument(advice.ShortID(id))
		return []advice.Action{advice.Say("Stop container %s on node %s, remove its network namespace if docker leaves it behind, and start the container again.", id, node).By(node, advice.Script(
			"key=$(docker inspect --format '{{.NetworkSettings.SandboxKey}}' "+id+") && docker stop "+id+" && {",
			`  case "$key" in */default) ;; ?*) if [ -e "$key" ]; then umount "$key"; rm "$key"; fi ;; esac`,
			"  docker start "+id,
			"}",
		))}
	},
	empty: func(node string) advice.Action {
		return advice.Say("Reboot node %s: a container that is only restarted may get the address of another one without a record. The containers with a restart policy start again, and get new addresses.", node).By(node, "systemctl reboot")
	},
	kept: ". dockerd removes it when it is restarted and the containers of node %s do not outlive that (live-restore).",
	ended: func(t remedies, id string) []advice.Alternative {
		return []advice.Alternative{advice.Either("it is not running", advice.Say("Disconnect it from the network, which frees the address.").
			By(t.Node, "docker network disconnect --force "+advice.Argument(networkName(t.Pool))+" "+advice.Argument(id)))}
	},
}.ipam()

// The default directories: docker's data root, and that of the network namespaces of its containers.
const (
	defaultRoot = "/var/lib/docker"
	runtimeDir  = "/run/docker/netns"
)

// A dockerSource reads dockerd's database of networks, and the configurations of its containers.
type dockerSource struct {
	source
	root       string
	containers dockerContainers
	runtime    string // directory of the network namespaces of containers
	used       bool   // dockerd has created network namespaces
}

// newDocker returns a source that has read nothing yet. The directories of the configuration, if there
// are any, are the data root and that of network namespaces.
func newDocker(host ipam.Host, cfg ipam.FilesConfig) ipam.FileSource {
	root, runtime := defaultRoot, runtimeDir
	if len(cfg.Dirs) == 2 {
		root, runtime = cfg.Dirs[0], cfg.Dirs[1]
	}
	return &dockerSource{
		source: newSource(host, DockerName, filepath.Join(root, "network", "files", "local-kv.db")),
		root:   root, runtime: runtime,
		containers: dockerContainers{host: host, dir: filepath.Join(root, "containers"), known: map[string]dockerVersion{}},
	}
}

// Places implements ipam.FileSource.
func (s *dockerSource) Places() []string { return []string{filepath.Dir(s.Path), s.containers.dir} }

// Find implements ipam.FileSource.
func (s *dockerSource) Find(time.Time) (again bool) {
	s.hidden, s.used = s.host.Visible(s.root), false
	if dir, _, err := s.host.OpenDir(s.runtime); err == nil {
		s.used = true
		_ = dir.Close()
	}
	return false
}

// Event implements ipam.FileSource.
func (s *dockerSource) Event(path string, _ bool) (handled bool) {
	if path == s.Path {
		s.Changed()
		return true
	}
	dir := filepath.Dir(path)
	return dir == filepath.Dir(s.Path) || dir == s.containers.dir
}

// Read implements ipam.FileSource. dockerd writes the configuration of a container after the database,
// so that the containers are read a while later.
func (s *dockerSource) Read(r ipam.FileRead) (again bool) {
	if s.hidden != nil {
		return false // the files there are the container's own
	}
	if r.All || r.Lost {
		s.containers.read()
	}
	again, _ = s.read(r, parseDocker)
	return again
}

// Containers implements ipam.ContainerSource.
func (s *dockerSource) Containers() []*ipam.Container { return s.containers.list() }

// Problems implements ipam.FileSource.
func (s *dockerSource) Problems() []string {
	problems := s.networks.problems()
	if s.hidden != nil && s.used {
		problems = append(problems, fmt.Sprintf("cannot read the networks and containers of %s: %s", DockerName, s.hidden))
	}
	if s.containers.fault != nil {
		problems = append(problems, fmt.Sprintf("cannot read %d of the containers of %s in %s: %s", s.containers.faults, DockerName, s.containers.dir, ipam.OneLine(s.containers.fault)))
	}
	return problems
}
