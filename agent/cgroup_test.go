package agent

import (
	"strings"
	"testing"
)

// Ids and paths of tests: real layouts, with the ids of containers made equal.
const (
	outerID = "81950eac55062e5d8e7b5567d1036e4b146dfe212bdc9263c97347e6ce86b904"
	innerID = "ee4b20e90ac7f42a10bd004d05646b13d8ab5e2c5e7cbc01abf8006bac016459"
	podUID  = "0125ec2f-b64a-4868-8f5b-94b56cbab864"
	// As kubelet writes it in the name of a slice.
	sliceUID = "0125ec2f_b64a_4868_8f5b_94b56cbab864"
	hashUID  = "89f4f2cb511c3b0b7e5272cff5ec37bf" // of a static pod
)

func TestCgroupSaysWhichContainerAProcessIsOf(t *testing.T) {
	const slices = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + sliceUID + ".slice/"
	inPod := container{id: innerID, pod: podUID}
	for _, c := range []struct {
		name, cgroup string
		want         container
	}{
		{"containerd, systemd driver, version 2", "0::" + slices + "cri-containerd-" + innerID + ".scope", inPod},
		{"CRI-O", "0::" + slices + "crio-" + innerID + ".scope", inPod},
		{"CRI-O with crun", "0::" + slices + "crio-" + innerID + ".scope/container", inPod},
		{"CRI-O, cgroupfs driver", "0::/kubepods/besteffort/pod" + podUID + "/crio-" + innerID, inPod},
		{"CRI-O's monitor", "0::" + slices + "crio-conmon-" + innerID + ".scope", container{}},
		{"dockershim, systemd driver", "3:cpu:" + slices + "docker-" + innerID + ".scope", inPod},
		{"guaranteed pod", "0::/kubepods.slice/kubepods-pod" + sliceUID + ".slice/cri-containerd-" + innerID + ".scope", inPod},
		{"cgroupfs driver", "4:memory:/kubepods/burstable/pod" + podUID + "/" + innerID, inPod},
		{"guaranteed pod, cgroupfs driver", "4:memory:/kubepods/pod" + podUID + "/" + innerID, inPod},
		{"static pod", "4:memory:/kubepods/burstable/pod" + hashUID + "/" + innerID, container{id: innerID, pod: hashUID}},
		{
			"static pod in a slice", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + hashUID + ".slice/cri-containerd-" + innerID + ".scope",
			container{id: innerID, pod: hashUID},
		},
		{"pod without a container: the shim", "0::/kubepods/burstable/pod" + podUID, container{pod: podUID}},
		{
			// open-telemetry/opentelemetry-java#4507: containerd's driver is not kubelet's.
			"runc that takes a systemd path for its own",
			"11:perf_event:/kubepods-besteffort-pod" + sliceUID + ".slice:cri-containerd:" + innerID + "\n" +
				"10:blkio:/system.slice/containerd.service/kubepods-besteffort-pod" + sliceUID + ".slice:cri-containerd:" + innerID,
			inPod,
		},
		{"its monitor", "0::/kubepods-besteffort-pod" + sliceUID + ".slice:crio-conmon:" + innerID, container{}},
		{"seen from a container", "0::/../../kubepods-besteffort-pod" + sliceUID + ".slice/cri-containerd-" + innerID + ".scope", inPod},
		{"container beside the agent's", "0::/../cri-containerd-" + innerID + ".scope", container{id: innerID}},

		{"docker, systemd driver", "0::/system.slice/docker-" + innerID + ".scope", container{id: innerID}},
		{"docker, cgroupfs driver", "9:blkio:/docker/" + innerID, container{id: innerID}},
		{"docker of Debian 8", "9:blkio:/" + innerID, container{id: innerID}},
		{"docker with systemd inside", "0::/docker/" + innerID + "/system.slice/nginx.service", container{id: innerID}},
		{"rootless docker", "0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-" + innerID + ".scope", container{id: innerID}},
		{"ECS", "5:cpuset:/ecs/3c3a5a6b-0000-4000-8000-000000000000/" + innerID, container{id: innerID}},
		{"nerdctl", "0::/system.slice/nerdctl-" + innerID + ".scope", container{id: innerID}},
		{"ctr", "0::/default/" + innerID, container{id: innerID}},
		{"podman", "0::/machine.slice/libpod-" + innerID + ".scope/container", container{id: innerID}},
		{"podman's monitor", "0::/machine.slice/libpod-conmon-" + innerID + ".scope", container{}},
		{"podman pod", "0::/machine.slice/machine-libpod_pod_" + outerID + ".slice/libpod-" + innerID + ".scope", container{id: innerID}},
		{"podman pod's own", "0::/machine.slice/machine-libpod_pod_" + outerID + ".slice", container{}},
		{"podman pod, cgroupfs driver", "0::/libpod_parent/" + outerID + "/libpod-" + innerID, container{id: innerID}},
		{"its monitor", "0::/libpod_parent/" + outerID + "/conmon", container{}},
		{"podman without a pod, cgroupfs driver", "0::/libpod_parent/libpod-" + innerID, container{id: innerID}},
		{"podman without a pod, cgroupfs driver, its own group", "0::/libpod_parent/libpod-" + innerID + "/container", container{id: innerID}},
		{"quadlet", "0::/system.slice/nginx.service/libpod-payload-" + innerID, container{id: innerID}},
		{"quadlet's runtime", "0::/system.slice/nginx.service/runtime", container{}},

		{
			"kind, cgroupfs driver", "9:blkio:/docker/" + outerID + "/kubelet/kubepods/besteffort/pod" + podUID + "/" + innerID,
			inPod,
		},
		{
			"kind, systemd driver",
			"0::/system.slice/docker-" + outerID + ".scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/" +
				"kubelet-kubepods-besteffort-pod" + sliceUID + ".slice/cri-containerd-" + innerID + ".scope",
			inPod,
		},
		{"pod of kind without a container", "0::/docker/" + outerID + "/kubelet/kubepods/pod" + podUID, container{pod: podUID}},
		{"docker in docker", "9:blkio:/system.slice/docker-" + outerID + ".scope/docker/" + innerID, container{id: innerID}},
		{
			"docker in docker, not in all hierarchies",
			"3:freezer:/docker/" + outerID + "\n2:cpu:/docker/" + outerID + "/docker/" + innerID + "\n1:name=systemd:/system.slice/docker.service\n0::/",
			container{id: innerID},
		},
		{"docker in a pod", "0::/kubepods/burstable/pod" + podUID + "/" + outerID + "/docker/" + innerID, inPod},
		{
			"kind in a pod", "0::/kubepods/pod" + hashUID + "/" + outerID + "/docker/" + outerID + "/kubelet/kubepods/pod" + podUID + "/" + innerID,
			inPod,
		},
		{"only some hierarchies", "11:freezer:/docker/" + innerID + "\n10:rdma:/\n0::/system.slice/containerd.service", container{id: innerID}},

		{"LXC", "4:memory:/lxc/web", container{name: "web"}},
		{"Proxmox", "0::/lxc/101/ns/init.scope", container{name: "101"}},
		{"LXC 4", "0::/lxc.payload.web-1/system.slice/cron.service", container{name: "web-1"}},
		{"LXC 3", "4:memory:/lxc.payload/web", container{name: "web"}},
		{"LXC's monitor", "0::/lxc.monitor.web", container{}},
		{"docker in LXC", "0::/lxc.payload.web/system.slice/docker-" + innerID + ".scope", container{id: innerID}},
		{"LXC in docker", "0::/docker/" + outerID + "/lxc/web", container{name: "web"}},
		{"docker's driver for LXC", "4:memory:/lxc/" + innerID, container{id: innerID}},
		{"systemd-nspawn", `0::/machine.slice/machine-TEST\x2d13\x2dNSPAWN.machinectl\x2dbind.7ye.scope/payload/init.scope`, container{name: "TEST-13-NSPAWN.machinectl-bind.7ye"}},
		{"systemd-nspawn's own process", `0::/machine.slice/machine-web.scope/supervisor`, container{}},
		{"systemd-nspawn as a service", `0::/machine.slice/systemd-nspawn@web\x2d1.service/payload/system.slice/cron.service`, container{name: "web-1"}},
		{"its own process", `0::/machine.slice/systemd-nspawn@web\x2d1.service/supervisor`, container{}},
		{"virtual machine of libvirt", `0::/machine.slice/machine-qemu\x2d1\x2dinstance\x2d00000001.scope/libvirt/emulator`, container{}},

		{"service", "0::/system.slice/nginx.service", container{}},
		{"session", "1:name=systemd:/user.slice/user-0.slice/session-3.scope\n0::/user.slice/user-0.slice/session-3.scope", container{}},
		{"nothing", "0::/\n", container{}},
		{"container that was deleted", "0::/docker/" + innerID + " (deleted)", container{id: innerID}},
		{"id that is too short", "0::/docker/" + innerID[1:], container{}},
		{"id that is too long", "0::/docker/" + innerID + "0", container{}},
		{"capitals", "0::/docker/" + strings.ToUpper(innerID), container{}},
		{"pod that is none", "0::/kubepods/podlike/" + podUID, container{}},
		{"not a cgroup file", "docker\n::\n\n", container{}},
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
	f.Add("0::/lxc.payload.web\n1:cpu:/docker/" + innerID)
	f.Add(`0::/machine.slice/systemd-nspawn@\x00\xff.service`)
	f.Fuzz(func(t *testing.T, data string) {
		c := parseCgroup(data)
		if c.id != "" && (len(c.id) != 64 || c.name != "") {
			t.Errorf("container of %q: got %+v", data, c)
		}
		if n := len(c.pod); n != 0 && n != 32 && n != 36 {
			t.Errorf("container of %q: got %+v", data, c)
		}
	})
}
