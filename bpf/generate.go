package bpf

// The compiler and its flags come from the environment: run make generate.
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -type kind -type protocol -type result observe observe.c
