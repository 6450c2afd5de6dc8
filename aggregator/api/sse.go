package api

import (
	"mime"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/apijson"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// eventsType is the media type of server-sent events (HTML, section 9.2).
	eventsType = "text/event-stream"
	// retryAfter is how long a browser waits before it reconnects, as a field of the stream.
	retryAfter = "retry: 1000\n\n"
	// heartbeat is a comment, which is sent if there was nothing else to send for heartbeatEvery. Proxies
	// and browsers then see that the connection is alive.
	heartbeat      = ":\n\n"
	heartbeatEvery = 5 * time.Second
	// lastEventID is the header with which a browser resumes: the last id that it received.
	lastEventID = "Last-Event-ID"
)

// wantsEvents reports whether a client prefers server-sent events to lines of JSON: of the two, its
// Accept header has them first.
func wantsEvents(r *http.Request) bool {
	for accepted := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		kind, params, err := mime.ParseMediaType(accepted)
		if err != nil || params["q"] == "0" {
			continue
		}
		switch kind {
		case eventsType:
			return true
		case streamType, "application/json":
			return false
		}
	}
	return false
}

// A watchEvent is a message of a watch.
type watchEvent interface {
	proto.Message
	GetType() pb.Watch_Type
	GetResumeToken() string
}

// appendEvent appends a message of a watch as a server-sent event. The id of an event is the token with
// which the watch continues after it. LOST without a token has an empty id: a browser that is
// disconnected before the next bookmark then starts anew.
func appendEvent(out []byte, m watchEvent) (_ []byte, err error) {
	out = append(append(out, "event: "...), m.GetType().String()...)
	if out, err = apijson.Append(append(out, "\ndata: "...), m); err != nil {
		return nil, err
	}
	if token := m.GetResumeToken(); token != "" || m.GetType() == pb.Watch_LOST {
		out = append(append(out, "\nid: "...), token...)
	}
	return append(out, "\n\n"...), nil
}

// appendError appends the error that ends a stream as a server-sent event. Its type is ERROR, because
// browsers dispatch events of the type error themselves.
func appendError(out []byte, failed error) (_ []byte, err error) {
	if out, err = apijson.Append(append(out, "event: ERROR\ndata: "...), status.Convert(failed).Proto()); err != nil {
		return nil, err
	}
	if token := ResumeToken(failed); token != "" {
		out = append(append(out, "\nid: "...), token...)
	}
	return append(out, "\n\n"...), nil
}
