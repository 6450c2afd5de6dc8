package workload

import (
	"regexp"
	"strconv"
	"strings"
)

// Container identifies a container as far as the path of its cgroup does.
type Container struct {
	ID   string // 64 hexadecimal digits; empty if the path has none
	Name string // for containers without such an id: LXC, systemd-nspawn
	Pod  string // UID of the Kubernetes pod of the container; for a static pod, a hash without dashes
}

var (
	// The names that container runtimes give the cgroup of a container. Their
	// monitors (crio-conmon-ID, libpod-conmon-ID) are not containers.
	containerCgroup = regexp.MustCompile(`^(?:(?:cri-containerd|crio|docker|libpod|libpod-payload|nerdctl)-)?([0-9a-f]{64})(?:\.scope)?$`)
	// The names that kubelet gives the cgroup of a pod: podUID, or a slice whose name ends
	// with podUID, with underscores instead of dashes.
	podCgroup = regexp.MustCompile(`^(?:.+-)?pod([0-9a-f]{32}|[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?$`)
	unitByte  = regexp.MustCompile(`\\x[0-9a-f]{2}`)
)

// parseCgroup parses /proc/PID/cgroup (cgroups(7)). It has one line for each hierarchy of
// version 1, and the line 0:: for version 2. Not all hierarchies contain all containers, so
// the path with the most levels of containers counts.
func parseCgroup(data string) Container {
	var best Container
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

// containerOf returns the innermost container of a path, and the number of levels of
// containers and pods in it. A path begins with /.. if the cgroup is outside the reader's
// cgroup namespace.
func containerOf(path string) (c Container, levels int) {
	// The cgroupfs driver of runc creates SLICE:RUNTIME:ID if its path has systemd's form.
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
			return Container{}, 0
		}
		if m := podCgroup.FindStringSubmatch(part); m != nil {
			// A container above the pod is the node, not a container of the pod.
			c = Container{Pod: strings.ReplaceAll(m[1], "_", "-")}
			levels++
			continue
		}
		if m := containerCgroup.FindStringSubmatch(part); m != nil {
			if before != "libpod_parent" || part != m[1] { // there, an id without a prefix is a pod of podman
				c.ID, c.Name = m[1], ""
				levels++
			}
			continue
		}
		if name := namedContainer(part, before, after); name != "" {
			c.ID, c.Name = "", name
			levels++
		}
	}
	return c, levels
}

// namedContainer returns the name of the container that one element of a path refers to, or ""
// if it refers to none.
func namedContainer(part, before, after string) string {
	if before == "lxc" || before == "lxc.payload" {
		return part
	}
	if name, ok := strings.CutPrefix(part, "lxc.payload."); ok {
		return name
	}
	// A unit of systemd-nspawn has its own process in the cgroup supervisor, and the
	// container's processes in payload. Other machines have no such child cgroups.
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

// unescapeUnit reverses systemd's escaping of unit names, such as \x2d for a dash.
func unescapeUnit(name string) string {
	return unitByte.ReplaceAllStringFunc(name, func(code string) string {
		b, _ := strconv.ParseUint(code[2:], 16, 8) // unitByte matches exactly two hexadecimal digits
		return string([]byte{byte(b)})
	})
}
