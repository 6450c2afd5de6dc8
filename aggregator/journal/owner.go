package journal

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	uidSize = 16
	// tailSize is the number of bytes in the digits at the end of a host interface.
	tailSize = 4
	// containerDigits is the number of digits of a container's ID that are recorded.
	containerDigits = 12
)

func uidText(raw []byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", raw[:4], raw[4:6], raw[6:8], raw[8:10], raw[10:])
}

// appendOwner appends an owner, which it changes, as part of a record at a time.
func appendOwner(v []byte, o *pb.Owner, at stamp) ([]byte, error) {
	r := &pb.RecordedOwner{Owner: o}
	if w := o.GetWorkload(); w != nil {
		if raw, err := hex.DecodeString(strings.ReplaceAll(w.Uid, "-", "")); err == nil && len(raw) == uidSize && uidText(raw) == w.Uid {
			r.Uid, w.Uid = raw, ""
		}
		if raw, err := hex.DecodeString(w.ContainerId); err == nil && hex.EncodeToString(raw) == w.ContainerId {
			r.ContainerId, w.ContainerId = raw, ""
		}
	}
	if mac, err := net.ParseMAC(o.Mac); err == nil && mac.String() == o.Mac {
		r.Mac, o.Mac = mac, ""
	}
	stem := max(0, len(o.HostInterface)-2*tailSize)
	if raw, err := hex.DecodeString(o.HostInterface[stem:]); err == nil && hex.EncodeToString(raw) == o.HostInterface[stem:] {
		r.HostInterfaceTail, o.HostInterface = raw, o.HostInterface[:stem]
	}
	if n, err := strconv.ParseInt(o.Netns, 10, 64); err == nil && n != 0 && strconv.FormatInt(n, 10) == o.Netns {
		r.Netns, o.Netns = n, ""
	}
	if o.FirstSeen != nil {
		r.FirstSeen, o.FirstSeen = new(at/1e3-o.FirstSeen.AsTime().UnixMilli()), nil
	}
	if o.AssignedAt != nil {
		r.AssignedAt, o.AssignedAt = new(at/1e3-o.AssignedAt.AsTime().UnixMilli()), nil
	}
	return marshal.MarshalAppend(v, r)
}

func parseOwner(v []byte, at stamp) (*pb.Owner, error) {
	r := &pb.RecordedOwner{}
	if err := proto.Unmarshal(v, r); err != nil {
		return nil, errors.Join(errDamagedRecord, err)
	}
	o := r.GetOwner()
	if o == nil {
		o = &pb.Owner{}
	}
	if w := o.GetWorkload(); w != nil {
		if len(r.GetUid()) == uidSize {
			w.Uid = uidText(r.GetUid())
		}
		w.ContainerId += hex.EncodeToString(r.GetContainerId())
	}
	o.Mac += net.HardwareAddr(r.GetMac()).String()
	o.HostInterface += hex.EncodeToString(r.GetHostInterfaceTail())
	if r.GetNetns() != 0 {
		o.Netns = strconv.FormatInt(r.GetNetns(), 10)
	}
	if r.FirstSeen != nil {
		o.FirstSeen = timestamppb.New(time.UnixMilli(at/1e3 - r.GetFirstSeen()))
	}
	if r.AssignedAt != nil {
		o.AssignedAt = timestamppb.New(time.UnixMilli(at/1e3 - r.GetAssignedAt()))
	}
	return o, nil
}
