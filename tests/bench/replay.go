package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

const (
	// replayedFrames are in the capture. One in a hundred is an ARP request, by one of replayedHosts.
	replayedFrames = 4_000_000
	replayedHosts  = 5_000
	// least is the number of frames per second that a core must replay.
	least = 2_000_000
)

// replayRows measures `ipwitness replay`.
func replayRows(ctx context.Context, bin string) (rows []row, err error) {
	dir, err := os.MkdirTemp("", "replay")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "lan.pcap")
	if err := writeCapture(file); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, bin, "replay", file)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("replay: %w: %s", err, out)
	}
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	rate := float64(replayedFrames) / used.Seconds()
	return []row{{
		fmt.Sprintf("replay: frames per second of CPU, of a capture of %d frames with 1 %% ARP of %d hosts", replayedFrames, replayedHosts),
		fmt.Sprintf("%.1f M", rate/1e6), fmt.Sprintf("at least %d M", least/1_000_000), rate >= least,
	}}, nil
}

// writeCapture writes a pcap file with nanoseconds.
func writeCapture(name string) (err error) {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	out := bufio.NewWriterSize(file, 1<<20)
	word := binary.LittleEndian.AppendUint32
	header := word(nil, 0xa1b23c4d) // https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-06.html
	for _, w := range []uint32{4<<16 | 2, 0, 0, 262144, 1} {
		header = word(header, w)
	}
	if _, err := out.Write(header); err != nil {
		return err
	}
	other := slices.Concat(make([]byte, 12), []byte{0x08, 0x00}, make([]byte, 86))
	for i := range uint64(replayedFrames) {
		frame := other
		if i%100 == 0 {
			host := binary.BigEndian.AppendUint16(nil, uint16(i/100*7919%replayedHosts)) //nolint:gosec // small
			mac, address := append([]byte{2, 0, 0, 0}, host...), append([]byte{10, 1}, host...)
			frame = slices.Concat([]byte{255, 255, 255, 255, 255, 255}, mac, []byte{0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1}, mac, address, make([]byte, 6), []byte{10, 2, 0, 1})
		}
		at := time.Duration(i) * 2 * time.Microsecond
		size := uint32(len(frame))                                                                                   //nolint:gosec // small
		raw := word(word(word(word(nil, uint32(1_764_500_000+at/time.Second)), uint32(at%time.Second)), size), size) //nolint:gosec // small
		if _, err := out.Write(append(raw, frame...)); err != nil {
			return err
		}
	}
	return out.Flush()
}
