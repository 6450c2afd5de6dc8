package main

// row is one situation. The names of its tests begin with its ID: T for a true conflict, L for
// something that only looks like one.
type row struct {
	id        string
	situation string
	// shown are the texts of testdata/situations.
	shown []shown
	// pure are tests of aggregator/verdict for variants with devices that not
	// every kernel has.
	pure []pure
	// devices are tests with such devices, which need a kernel that supports them.
	devices []string
}

// shown is one text, named after the row, and the part of the row that it shows.
type shown struct{ text, what string }

// pure is a variant of a row that is judged without a kernel.
type pure struct{ what, test string }

var rows = []row{
	{
		id:        "T1",
		situation: "On a routed network (kindnet: `ptp` and `host-local`) the directory of the IPAM is deleted while pods run; pods that start afterwards get the addresses of running pods. No frame ever shows it.",
		shown:     []shown{{"T1", ""}},
	},
	{
		id:        "T2",
		situation: "The same on one bridge (flannel, kubenet): both pods answer requests for the address.",
		shown:     []shown{{"T2", ""}},
	},
	{
		id:        "T3",
		situation: "A node that uses another node's name allocates its pods' addresses under that name; later they are freed as leaked and allocated again.",
		shown: []shown{
			{"T3-calico", "Calico's blocks show it: first a finding, at once and before any duplicate; after Calico has freed the address and allocated it again, the conflict and its cause."},
			{"T3", "Kubernetes pods: an address from a CNI result must be unique in the whole cluster. The nodes share no link. Here the host-local of each node has allocated the address."},
			{"T3-declared", "A network that is declared: `--network pods=10.244.0.0/16`."},
		},
	},
	{
		id:        "T4",
		situation: "Two pods whose `macvlan` or `ipvlan` interfaces share an uplink get one address. Frames between them never enter a port of their node.",
		shown: []shown{
			{"T4", "On one node."},
			{"T4-nodes", "On two nodes of one LAN: both have lost the other's reservation."},
		},
		pure: []pure{
			{"`ipvlan`: both have the MAC of the uplink", "TestT4IPVLANPodsOfOneParent"},
			{"a pod on a VLAN of the uplink, and a machine on that VLAN", "TestT4PodOnAVLANAndAMachineOnIt"},
		},
		devices: []string{"TestDeviceIPVLANPodsOfOneUplink", "TestDeviceVLANOfTheUplink", "TestDeviceVLANInABridgeJoinsPodsWithMachinesOutside"},
	},
	{
		id:        "T5",
		situation: "Two nodes have the same range of pod addresses, for instance because one was cloned.",
		shown: []shown{
			{"T5", "The pods."},
			{"T5-gateway", "The gateway address, where the network is declared."},
		},
	},
	{
		id:        "T6",
		situation: "An address inside the pod network was set by hand: on the node (by a person or a process of a hostNetwork pod), or in a virtual machine.",
		shown:     []shown{{"T6", "On the node."}, {"T6-guest", "In a virtual machine behind another pod's port: only frames show it, because no agent can read the guest's kernel."}},
		devices:   []string{"TestDeviceTapOfAVirtualMachineOnARoutedBridge"},
	},
	{
		id:        "T7",
		situation: "A machine outside the cluster takes an address that the node, or one of its pods, has on a shared LAN.",
		shown: []shown{
			{"T7", "The node's own address."},
			{"T7-pod", "The address of a `macvlan` pod."},
			{"T7-ipv6", "The node's own IPv6 address."},
			{"T7-nodes", "On a LAN of two nodes, where only the other node sees the machine's frames."},
			{"T7-externals", "Two machines outside: no agent can read their kernels, so the conflict stays SUSPECTED."},
		},
	},
	{
		id:        "T8",
		situation: "A virtual IP (keepalived, kube-vip) stays on two nodes after a hand-over.",
		shown: []shown{
			{"T8", "Both have the address (keepalived, kube-vip)."},
		},
	},
	{
		id:        "T9",
		situation: "MACs are derived from addresses (OVN-Kubernetes, spiderpool), so both duplicates have one MAC.",
		shown: []shown{
			{"T9", "On one link."},
			{"T9-ovs", "Pods on ports of Open vSwitch (its userspace datapath), according to CNI results."},
		},
	},
	{
		id:        "T10",
		situation: "A pod was deleted by force; its namespace lives on, and its address is given to another pod.",
		shown:     []shown{{"T10", ""}},
	},
	{
		id:        "T11",
		situation: "The node's tunnel, or the bridge that connects its pods, has the same address as a pod.",
		shown:     []shown{{"T11", "`vxlan.calico`."}, {"T11-bridge", "`cni0`."}},
	},
	{
		id:        "T12",
		situation: "An IPv6 duplicate where the kernel checks addresses before it uses them (`accept_dad=1`).",
		shown:     []shown{{"T12", ""}},
	},
	{
		id:        "T13",
		situation: "An IPv6 duplicate where the kernel does not check addresses (`accept_dad=0`, as the bridge plugin sets it).",
		shown:     []shown{{"T13", ""}},
	},
	{
		id:        "T14",
		situation: "Two networks of one node have overlapping ranges, and the node routes for both.",
		shown:     []shown{{"T14", ""}},
	},

	{
		id:        "L1",
		situation: "An address is allocated again after its pod was deleted.",
		shown:     []shown{{"L1", ""}},
	},
	{
		id:        "L2",
		situation: "A pod of a StatefulSet moves to another node with its address.",
		shown: []shown{
			{"L2", "Its end on the old node is known."},
			{"L2-unheard", "The old node is disconnected: the conflict stays SUSPECTED."},
		},
	},
	{
		id:        "L3",
		situation: "The sandbox of a pod is recreated, and the old one takes a while to end.",
		shown: []shown{
			{"L3", "Both live for a while."},
			{"L3-kubelet", "A sandbox died: kubelet creates another one, which gets the same address."},
		},
	},
	{
		id:        "L4",
		situation: "A completed pod still lists its address in the API.",
		shown:     []shown{{"L4", ""}},
	},
	{
		id:        "L5",
		situation: "Pods with hostNetwork have the node's address.",
		shown:     []shown{{"L5", "Processes in the node's namespace."}, {"L5-kubernetes", "Two pods of Kubernetes."}},
	},
	{
		id:        "L6",
		situation: "A VRRP or CARP address changes hands.",
		shown:     []shown{{"L6", "Between two nodes (keepalived with `use_vmac`)."}, {"L6-outside", "Between two routers outside."}},
	},
	{
		id:        "L7",
		situation: "A kube-vip address changes hands.",
		shown:     []shown{{"L7", "The new node takes the address before the old one lets it go."}},
	},
	{
		id:        "L8",
		situation: "A service or anycast address is configured on the loopback or dummy device of the node and of pods, and Linux answers for it and uses it as a source.",
		shown:     []shown{{"L8", ""}},
		pure:      []pure{{"a dummy device such as `kube-ipvs0`", "TestL8L9DummyAndLoopback"}},
		devices:   []string{"TestDeviceDummyAddressesMakeNoOwner"},
	},
	{
		id:        "L9",
		situation: "Link-local addresses that every link or node has, and nodelocaldns.",
		shown: []shown{
			{"L9", "One link-local address on two links."},
			{"L9-nodes", "The address that OVN-Kubernetes gives to `br-ex` of every node, on one LAN."},
			{"L9-nodelocaldns", "nodelocaldns."},
		},
	},
	{
		id:        "L10",
		situation: "The bridges of docker, podman and libvirt, with the same addresses on every node.",
		shown:     []shown{{"L10", "On one node."}, {"L10-nodes", "On two nodes of one LAN; docker uses the same MACs on both."}},
	},
	{
		id:        "L11",
		situation: "The gateway address is configured on the node's end of every pod's veth.",
		shown:     []shown{{"L11", ""}},
		pure:      []pure{{"Calico's MAC on every port", "TestL11CalicoHardwareAddressOnEveryPort"}},
	},
	{
		id:        "L12",
		situation: "A device answers for others: proxy ARP or NDP proxy.",
		shown: []shown{
			{"L12-node", "The node answers on its uplink for a pod."},
			{"L12-pod", "A pod answers for another one."},
			{"L12-ndp", "The same in IPv6."},
			{"L12-router", "A router on the LAN answers for many."},
		},
		pure: []pure{{"a repeater replaces the MACs of the machines behind it (SUSPECTED, never confirmed)", "TestL12RepeaterReplacesMACs"}},
	},
	{
		id:        "L13",
		situation: "A fabric or a network plugin answers for the owner (EVPN, OVN, Antrea).",
		shown:     []shown{{"L13", "With the owner's MAC."}, {"L13-antrea", "With the MAC that Antrea uses everywhere."}},
		pure:      []pure{{"the gateway of an EVPN on bridges, and on their VLAN and macvlan devices", "TestL13DistributedGatewayIsOneOwner"}},
	},
	{
		id:        "L14",
		situation: "One owner is seen with two MACs: ARP flux between two interfaces of a namespace, fail-over of a bond.",
		shown:     []shown{{"L14-host", "A node with two interfaces on one LAN."}, {"L14-pod", "A pod with two interfaces on one bridge."}},
		pure: []pure{
			{"a bond of the node", "TestL14BondWhosePortsHaveTheirOwnMACs"},
			{"a bond of a machine outside", "TestL14BondOfAMachineOutsideFailsOver"},
		},
		devices: []string{"TestDeviceBondFailsOver"},
	},
	{
		id:        "L15",
		situation: "One MAC has many addresses.",
		shown:     []shown{{"L15", "A `macvlan` pod with fifty."}, {"L15-outside", "A machine outside with fifty."}},
		pure:      []pure{{"`ipvlan`: many pods, one MAC", "TestL15IPVLANPodsShareOneMAC"}},
		devices:   []string{"TestDeviceIPVLANPodsOfOneUplink"},
	},
	{
		id:        "L16",
		situation: "KubeVirt: every launcher has 10.0.2.1 on a bridge of its own; in a migration, two launchers hold one address.",
		shown: []shown{
			{"L16", "The bridge inside the launchers."},
			{"L16-migration", "The address of one virtual machine in two launchers, according to KubeVirt's labels."},
		},
	},
	{
		id:        "L17",
		situation: "Equal ranges that do not meet: isolated bridges, VLANs, VRFs, ports of Open vSwitch.",
		shown: []shown{
			{"L17", "Two bridges that the node does not route for."},
			{"L17-lans", "Two nodes on two LANs."},
			{"L17-ovs", "Three VPCs of Kube-OVN, on ports of Open vSwitch (its userspace datapath)."},
		},
		pure: []pure{
			{"VRFs, ports of Open vSwitch, two uplinks", "TestL17EqualRangesThatDoNotMeet"},
			{"ports of one bridge in different VLANs", "TestL17PortsOfOneBridgeInDifferentVLANs"},
		},
		devices: []string{"TestDeviceBridgeWithVLANsIsALinkForEachVLAN", "TestDeviceVRFsAreNodesOfTheirOwn", "TestDeviceOpenVSwitchPortsAreLinksOfTheirOwn"},
	},
	{
		id:        "L18",
		situation: "Two clusters, or two kind nodes, on one machine.",
		shown:     []shown{{"L18", "Two clusters with one range of pod addresses, on one LAN."}},
	},
	{
		id:        "L19",
		situation: "Switches, DHCP servers and starting hosts ask whether an address is free (ARP probes, duplicate address detection).",
		shown:     []shown{{"L19", "ARP."}, {"L19-ipv6", "IPv6."}},
	},
	{
		id:        "L20",
		situation: "One frame is seen on several ports, or by several nodes.",
		shown: []shown{
			{"L20", "On two ports."},
			{"L20-nodes", "By three nodes."},
			{"L20-moved", "A virtual machine that moves between nodes with its MAC and its address."},
		},
	},
	{
		id:        "L21",
		situation: "Neighbour tables hold stale or permanent entries with another MAC.",
		shown:     []shown{{"L21", ""}},
	},
	{
		id:        "L22",
		situation: "Declared sharing: `--shared '10.96.0.0/24=anycast DNS'`.",
		shown:     []shown{{"L22", ""}},
	},
}
