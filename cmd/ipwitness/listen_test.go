package main

import (
	"fmt"
	"net"
	"strings"
	"testing"
)

func TestListenNamesThePortAndTheFlag(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, err = listen(t.Context(), addresses{grpc: "127.0.0.1:0", http: taken.Addr().String()})
	want := fmt.Sprintf("listen on %s: address already in use: is another ipwitness running? Choose another with --http-listen", taken.Addr())
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	_, err = listen(t.Context(), addresses{grpc: "192.0.2.1:0", http: "127.0.0.1:0"})
	if err == nil || !strings.Contains(err.Error(), "--grpc-listen") {
		t.Errorf("got %v, want an error that names --grpc-listen", err)
	}
	const here = "127.0.0.1:0"
	for flag, at := range map[string]addresses{
		`--grpc-listen: ""`:           {http: here},
		`--http-listen: ""`:           {grpc: here},
		`--http-listen: "127.0.0.1:"`: {grpc: here, http: "127.0.0.1:"},
		`--http-listen: "127.0.0.1"`:  {grpc: here, http: "127.0.0.1"},
		`--metrics-listen: "[::1]:"`:  {grpc: here, http: here, metrics: "[::1]:"},
	} {
		if _, err := listen(t.Context(), at); err == nil || !strings.HasPrefix(err.Error(), flag+" is not HOST:PORT") {
			t.Errorf("got %v, want that %s is not HOST:PORT", err, flag)
		}
	}
	l, err := listen(t.Context(), addresses{grpc: here, http: here})
	if err != nil || l.metrics != nil {
		t.Errorf("got %v, %v, want no listener of metrics", l.metrics, err)
	}
	l.close()
}
