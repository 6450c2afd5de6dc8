package ipam

import "strings"

// SeparatesTenants reports whether the node's end of a pod's veth is a port of Kube-OVN, whose
// tenants (VPCs) may use the same ranges for the first interfaces of pods. Kube-OVN names it ID_h or
// ID_IFACE_h, where ID is the beginning of the sandbox's ID (generateNicName in
// pkg/daemon/ovs_linux.go).
func SeparatesTenants(port string) bool {
	id, named := strings.CutSuffix(port, "_h")
	id, _, _ = strings.Cut(id, "_")
	return named && id != "" && strings.Trim(id, "0123456789abcdef") == ""
}
