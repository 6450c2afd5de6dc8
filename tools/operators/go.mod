module github.com/ipwitness/ipwitness/tools/operators

go 1.26.8

// Only the custom resource definitions of both are used, by which the API server
// validates our objects in tests. No code of them is built.
require (
	github.com/cert-manager/cert-manager v1.21.2
	github.com/prometheus-operator/prometheus-operator v0.85.0
)
