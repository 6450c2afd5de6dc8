package capture

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

var begun = time.Date(2026, 3, 14, 15, 9, 26, 123456789, time.UTC)

// reply returns an ARP reply of the host with a number, for 192.0.2.number, with VLAN tags.
func reply(number byte, vlans ...uint16) []byte {
	mac := []byte{2, 0, 0, 0, 0, number}
	frame := slices.Concat([]byte{2, 0, 0, 0, 0, 99}, mac)
	for _, vid := range vlans {
		frame = binary.BigEndian.AppendUint16(append(frame, 0x81, 0x00), vid)
	}
	return slices.Concat(frame, []byte{0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2}, mac, []byte{192, 0, 2, number, 2, 0, 0, 0, 0, 99, 192, 0, 2, 99})
}

// cooked returns a frame as a Linux cooked capture has it.
func cooked(version int, frame []byte) []byte {
	source, protocol, payload := append(slices.Clone(frame[6:12]), 0, 0), frame[12:14], frame[14:]
	if version == 1 {
		return slices.Concat([]byte{0, 0, 0, 1, 0, 6}, source, protocol, payload)
	}
	return slices.Concat(protocol, []byte{0, 0, 0, 0, 0, 7, 0, 1, 0, 6}, source, payload)
}

// at is the number of microseconds after begun of a frame.
func info(frame []byte, at int, on int) gopacket.CaptureInfo {
	return gopacket.CaptureInfo{Timestamp: begun.Add(time.Duration(at) * time.Microsecond), CaptureLength: len(frame), Length: len(frame), InterfaceIndex: on}
}

// pcap returns a pcap file with frames that are a microsecond apart.
func pcap(t testing.TB, kind layers.LinkType, frames ...[]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := pcapgo.NewWriterNanos(&out)
	if err := w.WriteFileHeader(262144, kind); err != nil {
		t.Fatal(err)
	}
	for i, f := range frames {
		if err := w.WritePacket(info(f, i, 0), f); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

// pcapng returns a pcapng file with one frame of each interface.
func pcapng(t testing.TB, names []string, kinds []layers.LinkType, frames ...[]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	of := func(i int) pcapgo.NgInterface {
		return pcapgo.NgInterface{Name: names[i], LinkType: kinds[i], SnapLength: 262144, TimestampResolution: 9}
	}
	w, err := pcapgo.NewNgWriterInterface(&out, of(0), pcapgo.DefaultNgWriterOptions)
	if err != nil {
		t.Fatal(err)
	}
	for i := range names[1:] {
		if _, err := w.AddInterface(of(i + 1)); err != nil {
			t.Fatal(err)
		}
	}
	for i, f := range frames {
		if err := w.WritePacket(info(f, i, i), f); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zipped(t testing.TB, raw []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(raw)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// read returns the claims in a file as text.
func read(t testing.TB, raw []byte) (claims []string, f *File, err error) {
	t.Helper()
	f, err = Open("lan.pcap", bytes.NewReader(raw), func(inside string) string { return "lan" + inside })
	if err != nil {
		return nil, nil, err
	}
	for {
		one, err := f.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return claims, f, err
		}
		text := fmt.Sprint(one.Interface, " ", one.At.Sub(begun), " ", one.Addr, " ", one.SHA)
		if one.Source != one.SHA {
			text += fmt.Sprint(" by ", one.Source)
		}
		if one.VLAN != 0 {
			text += fmt.Sprint(" VLAN ", one.VLAN, ".", one.InnerVLAN)
		}
		claims = append(claims, text)
	}
}

func TestCapturesAreRead(t *testing.T) {
	udp := append(slices.Repeat([]byte{0}, 12), 0x08, 0x00, 0x45, 0)
	other := reply(1)
	copy(other[6:12], []byte{2, 0, 0, 0, 0, 7}) // a proxy
	long := pcap(t, layers.LinkTypeEthernet, reply(1), reply(2))
	for _, test := range []struct {
		name string
		file []byte
		want string
	}{
		{"Ethernet", pcap(t, layers.LinkTypeEthernet, reply(1), udp, reply(2)), "lan 0s 192.0.2.1 02:00:00:00:00:01, lan 2µs 192.0.2.2 02:00:00:00:00:02"},
		{"gzip", zipped(t, pcap(t, layers.LinkTypeEthernet, reply(1))), "lan 0s 192.0.2.1 02:00:00:00:00:01"},
		{"a proxy", pcap(t, layers.LinkTypeEthernet, other), "lan 0s 192.0.2.1 02:00:00:00:00:01 by 02:00:00:00:00:07"},
		{"VLANs", pcap(t, layers.LinkTypeEthernet, reply(1, 100), reply(1, 100, 7)), "lan 0s 192.0.2.1 02:00:00:00:00:01 VLAN 100.0, lan 1µs 192.0.2.1 02:00:00:00:00:01 VLAN 100.7"},
		{"cooked", pcap(t, layers.LinkTypeLinuxSLL, cooked(1, reply(1))), "lan 0s 192.0.2.1 02:00:00:00:00:01"},
		{"cooked, version 2", pcap(t, linkCooked2, cooked(2, reply(1))), "lan#7 0s 192.0.2.1 02:00:00:00:00:01"},
		{"IP packets", pcap(t, layers.LinkTypeRaw, udp[14:]), ""},
		{"no frames", pcap(t, layers.LinkTypeEthernet), ""},
		{
			"several interfaces", pcapng(t, []string{"eth0", "any", "tun0"}, []layers.LinkType{layers.LinkTypeEthernet, layers.LinkTypeLinuxSLL, layers.LinkTypeRaw}, reply(1), cooked(1, reply(2)), udp[14:]),
			"laneth0 0s 192.0.2.1 02:00:00:00:00:01, lanany 1µs 192.0.2.2 02:00:00:00:00:02",
		},
		{"pcapng with gzip", zipped(t, pcapng(t, []string{"eth0"}, []layers.LinkType{layers.LinkTypeEthernet}, reply(1))), "laneth0 0s 192.0.2.1 02:00:00:00:00:01"},
		{"a file that was being written", long[:len(long)-3], "lan 0s 192.0.2.1 02:00:00:00:00:01"},
	} {
		t.Run(test.name, func(t *testing.T) {
			claims, f, err := read(t, test.file)
			if cut := strings.Contains(test.name, "being written"); cut != errors.Is(err, ErrCut) || !cut && err != nil {
				t.Error("got", err)
			}
			if got := strings.Join(claims, ", "); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if test.name == "IP packets" && (f.Frames != 1 || f.Other != 1) {
				t.Errorf("got %d frames, %d without Ethernet, want 1 and 1", f.Frames, f.Other)
			}
		})
	}
}

// TestPartsOfFramesAreCounted: with a short snapshot length, a capture does not say who claims an address.
func TestPartsOfFramesAreCounted(t *testing.T) {
	var out bytes.Buffer
	w := pcapgo.NewWriter(&out)
	whole := reply(1)
	part := info(whole[:20], 0, 0)
	part.Length = len(whole)
	if err := errors.Join(w.WriteFileHeader(20, layers.LinkTypeEthernet), w.WritePacket(part, whole[:20])); err != nil {
		t.Fatal(err)
	}
	claims, f, err := read(t, out.Bytes())
	if err != nil || len(claims) != 0 || f.Cut != 1 {
		t.Errorf("got %v, %v, %d parts, want one part", claims, err, f.Cut)
	}
}

func TestOtherFilesAreRefused(t *testing.T) {
	for _, raw := range []string{"", "hello", `{"ipwitnessCase": 2}`} {
		if _, _, err := read(t, []byte(raw)); err == nil || !strings.Contains(err.Error(), "lan.pcap: this is no capture of tcpdump or Wireshark (pcap or pcapng)") {
			t.Errorf("%q: got %v", raw, err)
		}
	}
}

// FuzzFiles: whatever a file has, reading it ends, with claims that a host can have.
func FuzzFiles(f *testing.F) {
	f.Add(pcap(f, layers.LinkTypeEthernet, reply(1), reply(2, 7)))
	f.Add(pcap(f, linkCooked2, cooked(2, reply(1))))
	f.Add(zipped(f, pcap(f, layers.LinkTypeLinuxSLL, cooked(1, reply(1)))))
	f.Add(pcapng(f, []string{"eth0", "tun0"}, []layers.LinkType{layers.LinkTypeEthernet, layers.LinkTypeRaw}, reply(1), []byte{0x45, 0}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		file, err := Open("fuzz", bytes.NewReader(raw), func(inside string) string { return inside })
		for err == nil {
			var one Frame
			if one, err = file.Next(); err == nil && (!one.Addr.IsValid() || one.Addr == netip.IPv4Unspecified()) {
				t.Errorf("got %+v", one)
			}
		}
	})
}
