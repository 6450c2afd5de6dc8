module github.com/ipwitness/ipwitness/tools/calico

go 1.26.8

// Only the files in libcalico-go/config/crd of Calico are used, which the cluster tests
// apply. No code of it is built.
require github.com/projectcalico/calico v1.11.0-cni-plugin.0.20250813170300-a0db560f0520
