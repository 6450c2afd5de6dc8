package verdict_test

import (
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

func TestMACsThatDoNotLocateTheirSender(t *testing.T) {
	for mac, want := range map[verdict.MAC]struct{ shared, virtual bool }{
		"\x00\x00\x5e\x00\x01\x33": {true, true},   // VRRP and CARP for IPv4
		"\x00\x00\x5e\x00\x02\x33": {true, true},   // VRRP for IPv6
		"\x00\x00\x5e\x00\x53\x01": {false, false}, // for documentation
		"\x00\x00\x0c\x07\xac\x01": {true, false},  // HSRP
		"\x00\x00\x0c\x9f\xf0\x01": {true, false},  // HSRP version 2
		"\x00\x05\x73\xa0\x0f\xff": {true, false},  // HSRP version 2 for IPv6
		"\x00\x00\x0c\x9f\x00\x01": {false, false}, // another card of Cisco
		"\x00\x05\x73\xa0\x10\x01": {false, false},
		"\x02\x42\xac\x11\x00\x02": {true, false}, // docker
		"\x0a\x58\x0a\xf4\x00\x05": {true, false}, // OVN-Kubernetes
		"\xee\xee\xee\xee\xee\xee": {true, false}, // Calico
		"\xaa\xbb\xcc\xdd\xee\xff": {true, false}, // Antrea
		"\x02\x00\x00\x00\x00\x01": {false, false},
		"\x52\x54\x00\x12\x34\x56": {false, false},
		"":                         {true, false},
	} {
		if mac.Shared() != want.shared || mac.Virtual() != want.virtual {
			t.Errorf("%s: got shared %v, virtual %v, want %+v", mac, mac.Shared(), mac.Virtual(), want)
		}
	}
}

func TestStampsAreTimes(t *testing.T) {
	now := time.Unix(1_700_000_000, 5).UTC()
	if got := verdict.At(now).Time(); !got.Equal(now) || got.Location() != time.UTC {
		t.Errorf("got %s, want %s", got, now)
	}
	if at, zero := verdict.At(time.Time{}), verdict.Stamp(0).Time(); at != 0 || !zero.IsZero() {
		t.Errorf("got %d and %s for no time, want 0 and the zero time", at, zero)
	}
}
