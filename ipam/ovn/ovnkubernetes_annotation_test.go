package ovn

import (
	"fmt"
	"strings"
	"testing"
)

func TestAddressesOfAnnotations(t *testing.T) {
	for annotation, want := range map[string]string{
		`{"default":{"ip_addresses":["10.244.1.3/24"],"mac_address":"0a:58:0a:f4:01:03","gateway_ips":["10.244.1.1"],"ip_address":"10.244.1.3/24","role":"primary"}}`: "[10.244.1.3]",
		`{"default":{"ip_addresses":["10.244.1.3/24","fd00:10:244:2::3/64"]},"shop/blue":{"ip_addresses":["10.200.0.3/16"]}}`:                                         "[10.244.1.3 fd00:10:244:2::3]",
		`{"default":{"ip_address":"10.244.1.3/24"}}`:                         "[10.244.1.3]",
		`{"default":{"ip_addresses":["10.244.1.3"]}}`:                        "[]",
		`{"shop/blue":{"ip_addresses":["10.200.0.3/16"]}}`:                   "[]",
		`{"default":{"ip_addresses":["1.0.0.1/8","1.0.0.2/8","1.0.0.3/8"]}}`: "[1.0.0.1 1.0.0.2]",
		`{"default":{"ip_addresses":["10.244.1.3/24"]},"shop/blue":7}`:       "[10.244.1.3]",
		`{"default":[]}`: "[]", "{": "[]", "": "[]",
		`{"default":{"ip_address":"10.244.1.3/24"}}` + strings.Repeat(" ", longest): "[]",
	} {
		if got := fmt.Sprint(Addresses(annotation)); got != want {
			t.Errorf("%.80s: got %s, want %s", annotation, got, want)
		}
	}
}
