// Package ipwitnessv1 is the contract: the messages and services of ipwitness,
// generated from the .proto files beside it, and the description of the REST
// interface. Only this file and names.go are written by hand.
package ipwitnessv1

import _ "embed"

// OpenAPI describes the REST interface, in JSON (OpenAPI 3.1).
//
//go:embed openapi.json
var OpenAPI []byte
