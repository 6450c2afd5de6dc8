package main

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/spf13/cobra"
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
	l, err := listen(t.Context(), addresses{grpc: here, http: here})
	if err != nil || l.metrics != nil {
		t.Errorf("got %v, %v, want no listener of metrics", l.metrics, err)
	}
	l.close()
}

func TestListenAddressesAreChecked(t *testing.T) {
	for _, flag := range []string{"--grpc-listen", "--http-listen", "--metrics-listen"} {
		for _, value := range []string{"", "nowhere", "127.0.0.1", "127.0.0.1:", "[::1]:", ":99999"} {
			cmd := &cobra.Command{}
			listenFlags(cmd, &addresses{}, addresses{})
			if err := cmd.ParseFlags([]string{flag, value}); err == nil {
				t.Errorf("%s %q: got no error", flag, value)
			}
		}
	}
}
