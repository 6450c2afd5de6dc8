module github.com/ipwitness/ipwitness/tools/operators

go 1.26.8

// Of both only the definitions of custom resources are used: the tests have the API
// server judge our objects by them. Nothing of them is built.
require (
	github.com/cert-manager/cert-manager v1.21.2
	github.com/prometheus-operator/prometheus-operator v0.85.0
)
