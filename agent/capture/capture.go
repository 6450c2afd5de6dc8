// Package capture reads the files that tcpdump, dumpcap and others write (pcap and pcapng, also with gzip), and has the claims in
// them in a table like that of an agent, by the clock of the files.
package capture

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/ipwitness/ipwitness/bpf"
)

// A Frame is a frame of a capture that claims an address.
type Frame struct {
	bpf.Binding
	At time.Time
	// Interface is where the frame was captured.
	Interface string
}

// A File reads one capture. Use Open.
type File struct {
	Name  string
	label func(string) string
	read  func() ([]byte, gopacket.CaptureInfo, error)
	of    func(i int) (name string, kind layers.LinkType)
	// Frames is the number of frames that were read, Cut that of frames with ARP or NDP of which the file has only a part, and
	// Other that of frames of interfaces without Ethernet frames.
	Frames, Cut, Other int
	// First and Last are the times of the first and of the last frame.
	First, Last time.Time
	frame       []byte
}

// ErrCut is the error of a file that ends within a frame: the frames before were read.
var ErrCut = errors.New("the file ends within a frame")

// magicNG begins a pcapng file: it is the type of a section header block. magicGzip begins a file of gzip (RFC 1952).
var (
	magicNG   = []byte{0x0a, 0x0d, 0x0d, 0x0a}
	magicGzip = []byte{0x1f, 0x8b}
)

// readAhead is the number of bytes that are read of a file at a time.
const readAhead = 1 << 20

// Open begins to read a capture. label returns the name of an interface, given that in the file, which may be empty.
func Open(name string, from io.Reader, label func(string) string) (*File, error) {
	in := bufio.NewReaderSize(from, readAhead)
	if magic, _ := in.Peek(len(magicGzip)); bytes.Equal(magic, magicGzip) {
		packed, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		in = bufio.NewReaderSize(packed, readAhead)
	}
	f := &File{Name: name, label: label}
	if magic, _ := in.Peek(len(magicNG)); bytes.Equal(magic, magicNG) {
		r, err := pcapgo.NewNgReader(in, pcapgo.NgReaderOptions{WantMixedLinkType: true, SkipUnknownVersion: true})
		if err != nil {
			return nil, fmt.Errorf("%s: read pcapng: %w", name, err)
		}
		f.read = r.ZeroCopyReadPacketData
		f.of = func(i int) (string, layers.LinkType) {
			at, err := r.Interface(i)
			if err != nil {
				return "", layers.LinkTypeNull
			}
			return at.Name, at.LinkType
		}
		return f, nil
	}
	r, err := pcapgo.NewReader(in)
	if err != nil {
		return nil, fmt.Errorf("%s: this is no capture of tcpdump or Wireshark (pcap or pcapng): %w", name, err)
	}
	f.read = r.ZeroCopyReadPacketData
	f.of = func(int) (string, layers.LinkType) { return "", r.LinkType() & 0xffff } // above it is the length of the checksum
	return f, nil
}

// Next returns the next frame that claims an address. At the end of the file the error is io.EOF.
func (f *File) Next() (Frame, error) {
	for {
		data, info, err := f.read()
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF):
			return Frame{}, fmt.Errorf("%s: %w", f.Name, ErrCut)
		case errors.Is(err, io.EOF):
			return Frame{}, io.EOF
		case err != nil:
			return Frame{}, fmt.Errorf("%s: frame %d: %w", f.Name, f.Frames+1, err)
		}
		f.Frames++
		if f.First.IsZero() || info.Timestamp.Before(f.First) {
			f.First = info.Timestamp
		}
		if info.Timestamp.After(f.Last) {
			f.Last = info.Timestamp
		}
		name, kind := f.of(info.InterfaceIndex)
		frame, on := f.ethernet(data, kind)
		if frame == nil {
			f.Other++
			continue
		}
		binding, result := bpf.Decode(frame, 0)
		switch {
		case result == bpf.ResultMalformed && info.CaptureLength < info.Length:
			f.Cut++
		case result == bpf.ResultEvent:
			if on != 0 {
				name = fmt.Sprint(name, "#", on)
			}
			return Frame{Binding: binding, At: info.Timestamp, Interface: f.label(name)}, nil
		}
	}
}

// The lengths of the headers of Linux cooked captures (https://www.tcpdump.org/linktypes/LINKTYPE_LINUX_SLL.html and SLL2).
const (
	cooked1 = 16
	cooked2 = 20
)

const linkCooked2 layers.LinkType = 276

// ethernet returns the Ethernet frame that was captured on an interface of a kind; nil if there was none. on is the index of the
// interface if the frame itself has it. A cooked frame has no destination.
func (f *File) ethernet(data []byte, kind layers.LinkType) (frame []byte, on uint32) {
	var header int
	var protocol, source []byte
	switch {
	case kind == layers.LinkTypeEthernet:
		return data, 0
	case kind == layers.LinkTypeLinuxSLL && len(data) >= cooked1:
		header, protocol, source = cooked1, data[14:16], data[6:12]
		if binary.BigEndian.Uint16(data[4:]) != 6 {
			return nil, 0
		}
	case kind == linkCooked2 && len(data) >= cooked2:
		header, protocol, source, on = cooked2, data[0:2], data[12:18], binary.BigEndian.Uint32(data[4:])
		if data[11] != 6 {
			return nil, 0
		}
	default:
		return nil, 0
	}
	f.frame = append(append(append(append(f.frame[:0], make([]byte, 6)...), source...), protocol...), data[header:]...)
	return f.frame, on
}
