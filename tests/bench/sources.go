package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/ipam/awsvpc"
	"github.com/ipwitness/ipwitness/ipam/azure"
	"github.com/ipwitness/ipwitness/ipam/containers"
	"github.com/ipwitness/ipwitness/ipam/dhcp"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"

	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
	"github.com/ipwitness/ipwitness/tests/netlab"
)

// sourceAllocations is the number of allocations of each IPAM that is read from files.
// sourceChanges is the number of changes.
const sourceAllocations, sourceChanges = 250, 50

// writers write the state of an IPAM on a host so that it has the first n allocations.
var writers = map[string]func(h *netlab.Host, n int) error{
	hostlocal.Name: func(h *netlab.Host, n int) error {
		dir := h.Path("/var/lib/cni/networks/pods")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		for i := range n {
			file := filepath.Join(dir, allocated(i).String())
			if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
				if err := os.WriteFile(file, []byte(containerOf(i)+"\r\neth0"), 0o600); err != nil {
					return err
				}
			}
		}
		if err := os.Remove(filepath.Join(dir, allocated(n).String())); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	},
	awsvpc.Name: func(h *netlab.Host, n int) error {
		all := make([]map[string]any, n)
		for i := range n {
			all[i] = map[string]any{
				"networkName": "aws-cni", "containerID": containerOf(i), "ifName": "eth0", "ipv4": allocated(i), "allocationTimestamp": time.Now().UnixNano(),
				"metadata": map[string]any{"k8sPodNamespace": "default", "k8sPodName": podOf(i), "interfacesCount": 1},
			}
		}
		state, err := json.Marshal(map[string]any{"version": "vpc-cni-ipam/1", "allocations": all})
		if err != nil {
			return err
		}
		return ipamtest.WriteAzure(h.Path("/run/aws-node/ipam.json"), state)
	},
	azure.Name: func(h *netlab.Host, n int) error {
		pods := make([]ipamtest.AzurePod, n)
		for i := range n {
			pods[i] = ipamtest.AzurePod{Namespace: "default", Name: podOf(i), Container: containerOf(i), Addresses: []netip.Addr{allocated(i)}, NICType: "InfraNIC"}
		}
		return ipamtest.WriteAzure(h.Path("/run/azure-cns/azure-endpoints.json"), ipamtest.AzureEndpoints(pods...))
	},
	dhcp.DnsmasqName: func(h *netlab.Host, n int) error {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%d %s %s %s *\n", time.Now().Add(time.Hour).Unix(), clientOf(i), allocated(i), podOf(i))
		}
		return errors.Join(bridge(h), ipamtest.WriteAzure(h.Path("/var/lib/misc/dnsmasq.leases"), []byte(b.String())))
	},
	dhcp.KeaName: func(h *netlab.Host, n int) error {
		var b strings.Builder
		b.WriteString("address,hwaddr,client_id,valid_lifetime,expire,subnet_id,fqdn_fwd,fqdn_rev,hostname,state,user_context\n")
		for i := range n {
			fmt.Fprintf(&b, "%s,%s,,3600,%d,1,0,0,%s,0,\n", allocated(i), clientOf(i), time.Now().Add(time.Hour).Unix(), podOf(i))
		}
		return errors.Join(bridge(h), ipamtest.WriteAzure(h.Path("/var/lib/kea/kea-leases4.csv"), []byte(b.String())))
	},
	containers.DockerName: func(h *netlab.Host, n int) error {
		keys := ipamtest.Bucket{}
		put := func(key, record string) {
			keys["docker/network/v1.0/"+key+"/"] = "\x07\x00\x00\x00\x00\x00\x00\x00" + record
		}
		put("network/apps", `{"id":"apps","ipamType":"default","ipamV4Config":"[{\"PreferredPool\":\"10.8.0.0/16\"}]",`+
			`"ipamV4Info":"[{\"IPAMData\":\"{\\\"Gateway\\\":\\\"10.8.255.254/16\\\",\\\"Pool\\\":\\\"10.8.0.0/16\\\"}\"}]","name":"apps","networkType":"bridge"}`)
		for i := range n {
			id := containerOf(i)
			put("sandbox/s"+id, fmt.Sprintf(`{"ID":"s%s","Cid":"%[1]s","Eps":[]}`, id))
			put("endpoint/apps/e"+id, fmt.Sprintf(`{"ep_iface":{"addr":"%s/16","dstPrefix":"eth"},"id":"e%s","sandbox":"s%[2]s"}`, allocated(i), id))
		}
		return ipamtest.WriteBolt(h.Path("/var/lib/docker/network/files/local-kv.db"), ipamtest.Bucket{"libnetwork": keys}, time.Now())
	},
	containers.PodmanName: func(h *netlab.Host, n int) error {
		ids, subnet := ipamtest.Bucket{}, ipamtest.Bucket{}
		for i := range n {
			ids[containerOf(i)] = `["` + allocated(i).String() + `"]`
			subnet[string(allocated(i).AsSlice())] = containerOf(i)
		}
		return ipamtest.WriteBolt(h.Path("/run/containers/networks/ipam.db"), ipamtest.Bucket{"podman": ipamtest.Bucket{"ids": ids, "10.8.0.0/16": subnet}}, time.Now())
	},
}

// bridge gives a host a link for the addresses of a DHCP server.
func bridge(h *netlab.Host) error {
	_, err := h.Output(h.Command("sh", "-euc", "ip link show br0 || { ip link add br0 type bridge; ip link set br0 up; ip addr add 10.8.255.254/16 dev br0; }"))
	return err
}

func clientOf(i int) string { return fmt.Sprintf("02:00:00:00:%02x:%02x", i>>8, i&0xff) }

func allocated(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 8, byte(i / 250), byte(i%250 + 2)})
}
func containerOf(i int) string { return fmt.Sprintf("%064x", i) }
func podOf(i int) string       { return fmt.Sprintf("pod-%d", i) }

// sourceRows measures the agent with the allocations of each IPAM that is read from files.
func sourceRows(ctx context.Context, bin string) ([]row, error) {
	without, rows, err := source(ctx, bin, "without allocations", nil)
	if err != nil {
		return rows, err
	}
	for _, m := range registry.All {
		if m.Files == nil || m.Name == dhcp.ClientName { // a node has one lease for each of its links
			continue
		}
		if writers[m.Name] == nil {
			rows = append(rows, row{"RSS of the agent with " + m.Name, "nothing writes its state", "a writer in sources.go", false})
			continue
		}
		rss, more, err := source(ctx, bin, fmt.Sprintf("with %d allocations of %s", sourceAllocations, m.Name), writers[m.Name])
		if err != nil {
			return rows, fmt.Errorf("measure %s: %w", m.Name, err)
		}
		more[0].measured += fmt.Sprintf(" (%+.1f)", rss-without)
		rows = append(rows, more...)
	}
	return rows, nil
}

// source measures the agent with the allocations of one IPAM; with none if there is no writer.
func source(ctx context.Context, bin, what string, write func(*netlab.Host, int) error) (rss float64, rows []row, err error) {
	host, err := netlab.New()
	if err != nil {
		return 0, nil, err
	}
	defer host.Close()
	if write != nil {
		if err := write(host, sourceAllocations); err != nil {
			return 0, nil, err
		}
	}
	aggregator, agent := site{Host: host}, site{Host: host}
	if aggregator.program, err = host.Aggregator(ctx, bin); err != nil {
		return 0, nil, err
	}
	defer func() { aggregator.program.Kill() }()
	if agent.program, err = host.Agent(ctx, bin, "--aggregator", local+":9640"); err != nil {
		return 0, nil, err
	}
	defer func() { agent.program.Kill() }()
	have := func(n int) error {
		_, err := aggregator.until(ctx, func(text string) bool {
			return sum(text, "ipwitness_node_up{") == 1 && int(sum(text, "ipwitness_ipam_allocations{")) == n
		})
		return err
	}
	want := 0
	if write != nil {
		want = sourceAllocations
	}
	if err := have(want); err != nil {
		return 0, nil, err
	}
	idle, err := agent.idle(ctx)
	if err != nil {
		return 0, nil, err
	}
	if rss, err = agent.rss(); err != nil {
		return 0, nil, err
	}
	percent := 100 * idle.Seconds() / idleTime.Seconds()
	rows = []row{
		{"RSS of the agent " + what, fmt.Sprintf("%.1f MiB", rss), "≤ 48 MiB", rss <= 48},
		{fmt.Sprintf("  CPU of a core while idle for %.0f s", idleTime.Seconds()), fmt.Sprintf("%.2f %%", percent), "≤ 0.2 %", percent <= 0.2},
	}
	if write == nil {
		return rss, rows, nil
	}
	before, err := agent.cpu()
	if err != nil {
		return 0, nil, err
	}
	for i := range sourceChanges {
		n := sourceAllocations + (i+1)%2
		if err := write(host, n); err != nil {
			return 0, nil, err
		}
		if err := have(n); err != nil {
			return 0, nil, err
		}
	}
	after, err := agent.cpu()
	if err != nil {
		return 0, nil, err
	}
	perChange := 1000 * (after - before).Seconds() / sourceChanges
	return rss, append(rows, row{"  CPU for each allocation that is added or removed", fmt.Sprintf("%.1f ms", perChange), "≤ 20 ms", perChange <= 20}), nil
}
