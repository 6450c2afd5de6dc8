package workload

import (
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/tests/agenttest"
)

// IDs and paths for the tests. The layouts are real; the IDs of containers are replaced.
const (
	// In the form that kubelet uses in names of slices.
	sliceUID = "0125ec2f_b64a_4868_8f5b_94b56cbab864"
	hashUID  = "89f4f2cb511c3b0b7e5272cff5ec37bf" // of a static pod
)

func TestContainerOfACgroup(t *testing.T) {
	const slices = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + sliceUID + ".slice/"
	inPod := Container{ID: agenttest.InnerID, Pod: agenttest.PodUID}
	for _, c := range []struct {
		name, cgroup string
		want         Container
	}{
		{"containerd, systemd driver, version 2", "0::" + slices + "cri-containerd-" + agenttest.InnerID + ".scope", inPod},
		{"CRI-O", "0::" + slices + "crio-" + agenttest.InnerID + ".scope", inPod},
		{"CRI-O with crun", "0::" + slices + "crio-" + agenttest.InnerID + ".scope/container", inPod},
		{"CRI-O, cgroupfs driver", "0::/kubepods/besteffort/pod" + agenttest.PodUID + "/crio-" + agenttest.InnerID, inPod},
		{"CRI-O's monitor", "0::" + slices + "crio-conmon-" + agenttest.InnerID + ".scope", Container{}},
		{"dockershim, systemd driver", "3:cpu:" + slices + "docker-" + agenttest.InnerID + ".scope", inPod},
		{"guaranteed pod", "0::/kubepods.slice/kubepods-pod" + sliceUID + ".slice/cri-containerd-" + agenttest.InnerID + ".scope", inPod},
		{"cgroupfs driver", "4:memory:/kubepods/burstable/pod" + agenttest.PodUID + "/" + agenttest.InnerID, inPod},
		{"guaranteed pod, cgroupfs driver", "4:memory:/kubepods/pod" + agenttest.PodUID + "/" + agenttest.InnerID, inPod},
		{"static pod", "4:memory:/kubepods/burstable/pod" + hashUID + "/" + agenttest.InnerID, Container{ID: agenttest.InnerID, Pod: hashUID}},
		{
			"static pod in a slice", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + hashUID + ".slice/cri-containerd-" + agenttest.InnerID + ".scope",
			Container{ID: agenttest.InnerID, Pod: hashUID},
		},
		{"pod without a container: the shim", "0::/kubepods/burstable/pod" + agenttest.PodUID, Container{Pod: agenttest.PodUID}},
		{
			// open-telemetry/opentelemetry-java#4507: containerd and kubelet use different
			// cgroup drivers.
			"runc that takes a systemd path for its own",
			"11:perf_event:/kubepods-besteffort-pod" + sliceUID + ".slice:cri-containerd:" + agenttest.InnerID + "\n" +
				"10:blkio:/system.slice/containerd.service/kubepods-besteffort-pod" + sliceUID + ".slice:cri-containerd:" + agenttest.InnerID,
			inPod,
		},
		{"its monitor", "0::/kubepods-besteffort-pod" + sliceUID + ".slice:crio-conmon:" + agenttest.InnerID, Container{}},
		{"seen from a container", "0::/../../kubepods-besteffort-pod" + sliceUID + ".slice/cri-containerd-" + agenttest.InnerID + ".scope", inPod},
		{"container beside the agent's", "0::/../cri-containerd-" + agenttest.InnerID + ".scope", Container{ID: agenttest.InnerID}},

		{"docker, systemd driver", "0::/system.slice/docker-" + agenttest.InnerID + ".scope", Container{ID: agenttest.InnerID}},
		{"docker, cgroupfs driver", "9:blkio:/docker/" + agenttest.InnerID, Container{ID: agenttest.InnerID}},
		{"docker of Debian 8", "9:blkio:/" + agenttest.InnerID, Container{ID: agenttest.InnerID}},
		{"docker with systemd inside", "0::/docker/" + agenttest.InnerID + "/system.slice/nginx.service", Container{ID: agenttest.InnerID}},
		{"rootless docker", "0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-" + agenttest.InnerID + ".scope", Container{ID: agenttest.InnerID}},
		{"ECS", "5:cpuset:/ecs/3c3a5a6b-0000-4000-8000-000000000000/" + agenttest.InnerID, Container{ID: agenttest.InnerID}},
		{"nerdctl", "0::/system.slice/nerdctl-" + agenttest.InnerID + ".scope", Container{ID: agenttest.InnerID}},
		{"ctr", "0::/default/" + agenttest.InnerID, Container{ID: agenttest.InnerID}},
		{"podman", "0::/machine.slice/libpod-" + agenttest.InnerID + ".scope/container", Container{ID: agenttest.InnerID}},
		{"podman's monitor", "0::/machine.slice/libpod-conmon-" + agenttest.InnerID + ".scope", Container{}},
		{"podman pod", "0::/machine.slice/machine-libpod_pod_" + agenttest.OuterID + ".slice/libpod-" + agenttest.InnerID + ".scope", Container{ID: agenttest.InnerID}},
		{"podman pod's own", "0::/machine.slice/machine-libpod_pod_" + agenttest.OuterID + ".slice", Container{}},
		{"podman pod, cgroupfs driver", "0::/libpod_parent/" + agenttest.OuterID + "/libpod-" + agenttest.InnerID, Container{ID: agenttest.InnerID}},
		{"its monitor", "0::/libpod_parent/" + agenttest.OuterID + "/conmon", Container{}},
		{"podman without a pod, cgroupfs driver", "0::/libpod_parent/libpod-" + agenttest.InnerID, Container{ID: agenttest.InnerID}},
		{"podman without a pod, cgroupfs driver, its own group", "0::/libpod_parent/libpod-" + agenttest.InnerID + "/container", Container{ID: agenttest.InnerID}},
		{"quadlet", "0::/system.slice/nginx.service/libpod-payload-" + agenttest.InnerID, Container{ID: agenttest.InnerID}},
		{"quadlet's runtime", "0::/system.slice/nginx.service/runtime", Container{}},

		{
			"kind, cgroupfs driver", "9:blkio:/docker/" + agenttest.OuterID + "/kubelet/kubepods/besteffort/pod" + agenttest.PodUID + "/" + agenttest.InnerID,
			inPod,
		},
		{
			"kind, systemd driver",
			"0::/system.slice/docker-" + agenttest.OuterID + ".scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/" +
				"kubelet-kubepods-besteffort-pod" + sliceUID + ".slice/cri-containerd-" + agenttest.InnerID + ".scope",
			inPod,
		},
		{"pod of kind without a container", "0::/docker/" + agenttest.OuterID + "/kubelet/kubepods/pod" + agenttest.PodUID, Container{Pod: agenttest.PodUID}},
		{"docker in docker", "9:blkio:/system.slice/docker-" + agenttest.OuterID + ".scope/docker/" + agenttest.InnerID, Container{ID: agenttest.InnerID}},
		{
			"docker in docker, not in all hierarchies",
			"3:freezer:/docker/" + agenttest.OuterID + "\n2:cpu:/docker/" + agenttest.OuterID + "/docker/" + agenttest.InnerID + "\n1:name=systemd:/system.slice/docker.service\n0::/",
			Container{ID: agenttest.InnerID},
		},
		{"docker in a pod", "0::/kubepods/burstable/pod" + agenttest.PodUID + "/" + agenttest.OuterID + "/docker/" + agenttest.InnerID, inPod},
		{
			"kind in a pod", "0::/kubepods/pod" + hashUID + "/" + agenttest.OuterID + "/docker/" + agenttest.OuterID + "/kubelet/kubepods/pod" + agenttest.PodUID + "/" + agenttest.InnerID,
			inPod,
		},
		{"two containers on one level", "2:cpu:/docker/" + agenttest.InnerID + "\n1:blkio:/docker/" + agenttest.OuterID, Container{ID: agenttest.InnerID}},
		{"only some hierarchies", "11:freezer:/docker/" + agenttest.InnerID + "\n10:rdma:/\n0::/system.slice/containerd.service", Container{ID: agenttest.InnerID}},

		{"LXC", "4:memory:/lxc/web", Container{Name: "web"}},
		{"Proxmox", "0::/lxc/101/ns/init.scope", Container{Name: "101"}},
		{"LXC 4", "0::/lxc.payload.web-1/system.slice/cron.service", Container{Name: "web-1"}},
		{"LXC 3", "4:memory:/lxc.payload/web", Container{Name: "web"}},
		{"LXC's monitor", "0::/lxc.monitor.web", Container{}},
		{"docker in LXC", "0::/lxc.payload.web/system.slice/docker-" + agenttest.InnerID + ".scope", Container{ID: agenttest.InnerID}},
		{"LXC in docker", "0::/docker/" + agenttest.OuterID + "/lxc/web", Container{Name: "web"}},
		{"docker's driver for LXC", "4:memory:/lxc/" + agenttest.InnerID, Container{ID: agenttest.InnerID}},
		{"systemd-nspawn", `0::/machine.slice/machine-TEST\x2d13\x2dNSPAWN.machinectl\x2dbind.7ye.scope/payload/init.scope`, Container{Name: "TEST-13-NSPAWN.machinectl-bind.7ye"}},
		{"systemd-nspawn's own process", `0::/machine.slice/machine-web.scope/supervisor`, Container{}},
		{"systemd-nspawn as a service", `0::/machine.slice/systemd-nspawn@web\x2d1.service/payload/system.slice/cron.service`, Container{Name: "web-1"}},
		{"its own process", `0::/machine.slice/systemd-nspawn@web\x2d1.service/supervisor`, Container{}},
		{"virtual machine of libvirt", `0::/machine.slice/machine-qemu\x2d1\x2dinstance\x2d00000001.scope/libvirt/emulator`, Container{}},

		{"service", "0::/system.slice/nginx.service", Container{}},
		{"session", "1:name=systemd:/user.slice/user-0.slice/session-3.scope\n0::/user.slice/user-0.slice/session-3.scope", Container{}},
		{"nothing", "0::/\n", Container{}},
		{"container that was deleted", "0::/docker/" + agenttest.InnerID + " (deleted)", Container{ID: agenttest.InnerID}},
		{"id that is too short", "0::/docker/" + agenttest.InnerID[1:], Container{}},
		{"id that is too long", "0::/docker/" + agenttest.InnerID + "0", Container{}},
		{"capitals", "0::/docker/" + strings.ToUpper(agenttest.InnerID), Container{}},
		{"pod that is none", "0::/kubepods/podlike/" + agenttest.PodUID, Container{}},
		{"not a cgroup file", "docker\n::\n\n", Container{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := parseCgroup(c.cgroup); got != c.want {
				t.Errorf("container of %q: got %+v, want %+v", c.cgroup, got, c.want)
			}
			if got := parseCgroup("12:devices:/\n" + c.cgroup + "\n"); got != c.want {
				t.Errorf("container of %q after another hierarchy: got %+v, want %+v", c.cgroup, got, c.want)
			}
		})
	}
}

func FuzzCgroup(f *testing.F) {
	f.Add("0::/lxc.payload.web\n1:cpu:/docker/" + agenttest.InnerID)
	f.Add(`0::/machine.slice/systemd-nspawn@\x00\xff.service`)
	f.Fuzz(func(t *testing.T, data string) {
		c := parseCgroup(data)
		if c.ID != "" && (len(c.ID) != 64 || c.Name != "") {
			t.Errorf("container of %q: got %+v", data, c)
		}
		if n := len(c.Pod); n != 0 && n != 32 && n != 36 {
			t.Errorf("container of %q: got %+v", data, c)
		}
	})
}
