package agent

import (
	"regexp"
	"strconv"
	"strings"
)

// container is what the path of a cgroup says of the container that it was made for.
type container struct {
	id   string // 64 hexadecimal digits
	name string // of a container that has no such id: LXC, systemd-nspawn
	pod  string // UID of the Kubernetes pod that it is in; a static pod has a hash without dashes
}

var (
	// What container runtimes call the cgroup of a container. Their monitors
	// (crio-conmon-ID, libpod-conmon-ID) are none.
	containerCgroup = regexp.MustCompile(`^(?:(?:cri-containerd|crio|docker|libpod|libpod-payload|nerdctl)-)?([0-9a-f]{64})(?:\.scope)?$`)
	// What kubelet calls the cgroup of a pod: podUID, or a slice whose name ends
	// so, with underscores, as dashes have a meaning there.
	podCgroup = regexp.MustCompile(`^(?:.+-)?pod([0-9a-f]{32}|[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?$`)
	unitByte  = regexp.MustCompile(`\\x[0-9a-f]{2}`)
)

// parseCgroup reads /proc/PID/cgroup (cgroups(7)): a line for each hierarchy of
// version 1, and 0:: for version 2. Not all of them know of every container, so
// the path that knows most counts.
func parseCgroup(data string) container {
	var best container
	most := 0
	for line := range strings.Lines(data) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) < 3 {
			continue
		}
		if c, levels := containerOf(fields[2]); levels > most {
			best, most = c, levels
		}
	}
	return best
}

// containerOf gives the innermost container of a path, and how many levels of
// containers and pods the path has. A path begins with /.. where the cgroup is
// outside of the reader's cgroup namespace.
func containerOf(path string) (c container, levels int) {
	// runc that takes a systemd path for its own makes SLICE:RUNTIME:ID of it.
	parts := strings.FieldsFunc(strings.TrimSuffix(path, " (deleted)"), func(r rune) bool { return r == '/' || r == ':' })
	for i, part := range parts {
		var before, after string
		if i > 0 {
			before = parts[i-1]
		}
		if i+1 < len(parts) {
			after = parts[i+1]
		}
		if part == "conmon" || strings.HasPrefix(part, "crio-conmon") || strings.HasPrefix(part, "libpod-conmon") {
			return container{}, 0
		}
		if m := podCgroup.FindStringSubmatch(part); m != nil {
			// A container further up is the node, not a container of this pod.
			c = container{pod: strings.ReplaceAll(m[1], "_", "-")}
			levels++
			continue
		}
		if m := containerCgroup.FindStringSubmatch(part); m != nil {
			if before != "libpod_parent" || part != m[1] { // the bare id is a pod of podman
				c.id, c.name = m[1], ""
				levels++
			}
			continue
		}
		if name := namedContainer(part, before, after); name != "" {
			c.id, c.name = "", name
			levels++
		}
	}
	return c, levels
}

// namedContainer gives the name of the container that one part of a path stands
// for; empty where it stands for none.
func namedContainer(part, before, after string) string {
	if before == "lxc" || before == "lxc.payload" {
		return part
	}
	if name, ok := strings.CutPrefix(part, "lxc.payload."); ok {
		return name
	}
	// A unit of systemd-nspawn has its own process in supervisor, and the
	// container's in payload. Other machines have no such parts.
	if unit, ok := strings.CutSuffix(part, ".service"); ok && after != "supervisor" {
		if name, ok := strings.CutPrefix(unit, "systemd-nspawn@"); ok {
			return unescapeUnit(name)
		}
	}
	if unit, ok := strings.CutSuffix(part, ".scope"); ok && after == "payload" {
		if name, ok := strings.CutPrefix(unit, "machine-"); ok {
			return unescapeUnit(name)
		}
	}
	return ""
}

// unescapeUnit undoes how systemd writes a name into that of a unit: - is \x2d.
func unescapeUnit(name string) string {
	return unitByte.ReplaceAllStringFunc(name, func(code string) string {
		b, _ := strconv.ParseUint(code[2:], 16, 8) // two hexadecimal digits, as unitByte says
		return string([]byte{byte(b)})
	})
}
