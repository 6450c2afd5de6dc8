#!/usr/bin/env bash
# whereabouts 0.9.2: a pod that asks again and gets an address of a further range leaves that address without its cluster-wide reservation.
#
# Expected: with enable_overlapping_ranges (the default) each address is kept from other ranges by an
# OverlappingRangeIPReservation, so that networks with overlapping ranges never give out one address twice.
# A second ADD for the same pod and interface (kubelet tries again after a failure, or a pod of a StatefulSet is made again
# while its allocation is left) gets the address that it has, and finds its own reservation. IPManagementKubernetesUpdate
# notes that in skipOverlappingRangeUpdate before the loop over the ranges and never takes it back: the addresses of all
# later ranges of that ADD are written to their IPPools only. A pod of a network whose range overlaps gets such an address.
# So the IPPool and the reservations disagree without an error, and only for pods with several ranges (dual-stack).
#
# Seen with github.com/k8snetworkplumbingwg/whereabouts v0.9.2 and the fake clientsets of client-go, go 1.26:
#   pod one asks again, after a failure: 10.1.0.1 10.2.0.1; reservations: 10.1.0.1
#   pod two of another network, with 10.2.0.0/25: 10.2.0.1
# Needs Go and the module proxy. Changes nothing outside of its folder.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
export GOWORK=off GOFLAGS='-mod=mod -trimpath -modcacherw' GOPATH=$tmp/go
cat >main.go <<'GO'
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sort"
	"strings"

	"github.com/k8snetworkplumbingwg/whereabouts/pkg/api/whereabouts.cni.cncf.io/v1alpha1"
	"github.com/k8snetworkplumbingwg/whereabouts/pkg/generated/clientset/versioned/fake"
	storage "github.com/k8snetworkplumbingwg/whereabouts/pkg/storage/kubernetes"
	"github.com/k8snetworkplumbingwg/whereabouts/pkg/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8sfake "k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

func main() {
	api := fake.NewSimpleClientset()
	api.PrependReactor("create", "ippools", func(a k8stesting.Action) (bool, runtime.Object, error) {
		// An API server sets it, and each change of a pool tests it.
		a.(k8stesting.CreateAction).GetObject().(*v1alpha1.IPPool).ResourceVersion = "1"
		return false, nil, nil
	})
	fails := true // the API server is out of reach when the second range is due
	api.PrependReactor("get", "ippools", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if fails && strings.HasPrefix(a.(k8stesting.GetAction).GetName(), "10.2.") {
			return true, nil, errors.New("connection refused")
		}
		return false, nil, nil
	})
	client := *storage.NewKubernetesClient(api, k8sfake.NewSimpleClientset())
	add := func(container, pod string, ranges ...string) (string, error) {
		conf := types.IPAMConfig{OverlappingRanges: true, PodNamespace: "default", PodName: pod}
		for _, r := range ranges {
			_, prefix, _ := net.ParseCIDR(r)
			first := append(net.IP{}, prefix.IP.To4()...)
			first[3]++
			conf.IPRanges = append(conf.IPRanges, types.RangeConfiguration{Range: r, RangeStart: first})
		}
		i := &storage.KubernetesIPAM{Client: client, Config: conf, Namespace: "kube-system", ContainerID: container, IfName: "net1"}
		ips, err := storage.IPManagementKubernetesUpdate(context.Background(), types.Allocate, i, conf)
		var all []string
		for _, ip := range ips {
			all = append(all, ip.IP.String())
		}
		return strings.Join(all, " "), err
	}

	if _, err := add("a", "one", "10.1.0.0/24", "10.2.0.0/24"); err == nil {
		fmt.Println("changed: the first ADD does not fail")
		os.Exit(1)
	}
	fails = false
	one, err := add("b", "one", "10.1.0.0/24", "10.2.0.0/24")
	if err != nil {
		fmt.Println("changed:", err)
		os.Exit(1)
	}
	list, err := api.WhereaboutsV1alpha1().OverlappingRangeIPReservations("kube-system").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		fmt.Println("changed:", err)
		os.Exit(1)
	}
	var reserved []string
	for _, r := range list.Items {
		reserved = append(reserved, r.Name)
	}
	sort.Strings(reserved)
	two, err := add("c", "two", "10.2.0.0/25")
	if err != nil {
		fmt.Println("changed:", err)
		os.Exit(1)
	}
	fmt.Printf("pod one asks again, after a failure: %s; reservations: %s\npod two of another network, with 10.2.0.0/25: %s\n", one, strings.Join(reserved, " "), two)
	if one != "10.1.0.1 10.2.0.1" || strings.Join(reserved, " ") != "10.1.0.1" || two != "10.2.0.1" {
		fmt.Println("changed")
		os.Exit(1)
	}
}
GO
go mod init findings >/dev/null 2>&1
go get github.com/k8snetworkplumbingwg/whereabouts@v0.9.2 >/dev/null 2>&1
go run . 2>log || { tail -n 5 log; exit 1; } # the log has the debug lines of the module
