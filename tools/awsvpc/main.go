// Command ipamd is the part of the AWS VPC CNI's daemon that allocates addresses, without EC2: the
// real datastore and its real checkpoint. The network interfaces and their addresses, which ipamd
// learns from EC2, come from commands on standard input. With -socket, it also serves the requests
// of the real CNI plugin aws-cni.
//
// Each line is a command, which is answered by a line that begins with ok or error:
//
//	eni ID DEVICE           attach a network interface
//	cidr ENI CIDR           assign an address or a prefix to an interface
//	drop ENI CIDR           remove it with the allocations in it, as after stale instance metadata
//	add CONTAINER NAMESPACE POD
//	                        allocate an address to a pod, and print it
//	del CONTAINER           release the address of a pod
//	restore                 read the checkpoint, as ipamd does when it starts
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/aws/amazon-vpc-cni-k8s/pkg/ipamd/datastore"
	"github.com/aws/amazon-vpc-cni-k8s/pkg/utils/logger"
	"github.com/aws/amazon-vpc-cni-k8s/rpc"
	"google.golang.org/grpc"
)

const (
	network      = "aws-cni"
	podInterface = "eth0"
	subnet       = "subnet-1"
)

func main() {
	checkpoint := flag.String("checkpoint", "/var/run/aws-node/ipam.json", "checkpoint `file`")
	prefixes := flag.Bool("prefixes", false, "allocate addresses from prefixes")
	ipv6 := flag.Bool("ipv6", false, "allocate IPv6 addresses")
	socket := flag.String("socket", "", "`path` of the socket for the CNI plugin")
	flag.Parse()
	log := logger.New(&logger.Configuration{LogLevel: "Info", LogLocation: "stderr"})
	d := &daemon{
		ipv6:  *ipv6,
		store: datastore.NewDataStore(log, datastore.NewJSONFile(*checkpoint), *prefixes || *ipv6, 0),
	}
	if err := d.run(*socket, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "ipamd:", err)
		os.Exit(1)
	}
}

// A daemon is a datastore with the interfaces of commands and of the CNI plugin.
type daemon struct {
	rpc.UnimplementedCNIBackendServer
	store *datastore.DataStore
	ipv6  bool
}

// run carries out commands until the input ends.
func (d *daemon) run(socket string, commands io.Reader, answers io.Writer) error {
	if socket != "" {
		at, err := net.Listen("unix", socket)
		if err != nil {
			return fmt.Errorf("serve the CNI plugin: %w", err)
		}
		server := grpc.NewServer()
		rpc.RegisterCNIBackendServer(server, d)
		go func() { _ = server.Serve(at) }()
		defer server.Stop()
	}
	lines := bufio.NewScanner(commands)
	for lines.Scan() {
		answer, err := d.command(strings.Fields(lines.Text()))
		if err != nil {
			answer = "error " + err.Error()
		} else {
			answer = strings.TrimSpace("ok " + answer)
		}
		if _, err := fmt.Fprintln(answers, answer); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
	return lines.Err()
}

// command carries out a command.
func (d *daemon) command(words []string) (answer string, err error) {
	var name string
	var args [3]string
	if len(words) > 0 {
		name = words[0]
		copy(args[:], words[1:])
	}
	switch name {
	case "eni":
		device, err := strconv.Atoi(args[1])
		if err != nil {
			return "", fmt.Errorf("parse device number: %w", err)
		}
		return "", d.store.AddENI(args[0], device, device == 0, false, false, device+1, subnet)
	case "cidr":
		return "", d.cidr(args[1], func(n net.IPNet, prefix bool) error { return d.store.AddIPv4CidrToStore(args[0], n, prefix) },
			func(n net.IPNet, prefix bool) error { return d.store.AddIPv6CidrToStore(args[0], n, prefix) })
	case "drop":
		return "", d.cidr(args[1], func(n net.IPNet, _ bool) error { return d.store.DelIPv4CidrFromStore(args[0], n, true) },
			func(n net.IPNet, _ bool) error { return d.store.DelIPv6CidrFromStore(args[0], n, true) })
	case "add":
		v4, v6, _, _, err := d.store.AssignPodIPAddress(key(args[0], podInterface, network), pod(args[1], args[2]), !d.ipv6, d.ipv6)
		return v4 + v6, err
	case "del":
		_, _, _, _, _, err := d.store.UnassignPodIPAddress(key(args[0], podInterface, network))
		return "", err
	case "restore":
		return "", d.store.ReadBackingStore(d.ipv6)
	}
	return "", fmt.Errorf("unknown command %q", name)
}

// cidr calls the function for the family of a prefix.
func (*daemon) cidr(text string, v4, v6 func(n net.IPNet, prefix bool) error) error {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return fmt.Errorf("parse prefix: %w", err)
	}
	n := net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	if p.Addr().Is4() {
		return v4(n, !p.IsSingleIP())
	}
	return v6(n, !p.IsSingleIP())
}

// AddNetwork implements rpc.CNIBackendServer, like ipamd for pods without a branch interface.
func (d *daemon) AddNetwork(_ context.Context, in *rpc.AddNetworkRequest) (*rpc.AddNetworkReply, error) {
	v4, v6, device, table, err := d.store.AssignPodIPAddress(key(in.GetContainerID(), in.GetIfName(), in.GetNetworkName()),
		pod(in.GetK8S_POD_NAMESPACE(), in.GetK8S_POD_NAME()), !d.ipv6, d.ipv6)
	if err != nil {
		return &rpc.AddNetworkReply{}, nil // ipamd only logs the error
	}
	return &rpc.AddNetworkReply{Success: true, IPAllocationMetadata: given(v4, v6, device, table)}, nil
}

// DelNetwork implements rpc.CNIBackendServer, like ipamd for pods without a branch interface.
func (d *daemon) DelNetwork(_ context.Context, in *rpc.DelNetworkRequest) (*rpc.DelNetworkReply, error) {
	_, address, device, _, table, err := d.store.UnassignPodIPAddress(key(in.GetContainerID(), in.GetIfName(), in.GetNetworkName()))
	switch {
	case err != nil:
		return nil, err
	case d.ipv6:
		return &rpc.DelNetworkReply{Success: true, IPAllocationMetadata: given("", address, device, table)}, nil
	}
	return &rpc.DelNetworkReply{Success: true, IPAllocationMetadata: given(address, "", device, table)}, nil
}

func given(v4, v6 string, device, table int) []*rpc.IPAllocationMetadata {
	return []*rpc.IPAllocationMetadata{{IPv4Addr: v4, IPv6Addr: v6, DeviceNumber: int32(device), RouteTableId: int32(table)}}
}

func key(container, iface, network string) datastore.IPAMKey {
	return datastore.IPAMKey{NetworkName: network, ContainerID: container, IfName: iface}
}

func pod(namespace, name string) datastore.IPAMMetadata {
	return datastore.IPAMMetadata{K8SPodNamespace: namespace, K8SPodName: name, InterfacesCount: 1}
}
