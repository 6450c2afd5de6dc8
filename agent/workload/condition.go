package workload

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/agent/table"
)

// A Call is a method and the result of a call of it.
type Call struct{ Method, Result string }

// condition is the state of the container runtime: which one it is, and whether it answers.
type condition struct {
	log           *slog.Logger
	StatusChanged func() // called when problems have changed; set before run

	mu        sync.Mutex // for fields that other goroutines than that of Run use, too
	runtime   string     // name and version
	socket    string     // the current or last socket
	connected bool
	away      time.Time // since when it has not answered
	fault     error     // why it does not answer
	calls     map[Call]uint64
}

// socketIs records which runtime answers, and reports whether it has changed.
func (c *condition) socketIs(runtime, socket string) (other bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	other = c.socket != "" && c.socket != socket
	c.runtime, c.socket = runtime, socket
	return other
}

func (c *condition) count(method string, err error) {
	result := "ok"
	switch status.Code(err) {
	case codes.OK:
	case codes.DeadlineExceeded:
		result = "timeout"
	case codes.Unimplemented:
		result = "unimplemented"
	default:
		result = "error"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[Call{method, result}]++
}

func (c *condition) failed(err error) {
	c.mu.Lock()
	first := c.away.IsZero()
	if first {
		c.away = time.Now()
	}
	other := c.fault == nil || c.fault.Error() != err.Error()
	c.connected, c.fault = false, err
	c.mu.Unlock()
	if first {
		c.log.Warn("the container runtime does not answer", "error", err)
		time.AfterFunc(awayAfter, c.StatusChanged)
	}
	if other {
		c.StatusChanged()
	}
}

func (c *condition) answers() {
	c.mu.Lock()
	was := c.connected
	c.connected, c.away, c.fault = true, time.Time{}, nil
	runtime, socket := c.runtime, c.socket
	c.mu.Unlock()
	if !was {
		c.log.Info("the container runtime answers", "runtime", runtime, "socket", socket)
		c.StatusChanged()
	}
}

func (c *condition) Health(now time.Time) (runtime string, problems []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	const lost = "names of new pods come from CNI results and processes"
	switch {
	case c.fault == nil:
	case c.runtime != "":
		if now.Sub(c.away) >= awayAfter {
			problems = append(problems, fmt.Sprintf("the container runtime at %s has not answered since %s: %s (%s)",
				c.socket, c.away.UTC().Format(time.RFC3339), lost, table.Short(c.fault)))
		}
	case errors.Is(c.fault, os.ErrPermission):
		problems = append(problems, fmt.Sprintf("no permission to use the socket of the container runtime (%s): %s; "+
			"give the agent's user write access to it, or set --cri-socket off", table.Short(c.fault), lost))
	default:
		problems = append(problems, fmt.Sprintf("no container runtime was found (%s): %s; "+
			"correct --cri-socket, or start the runtime: the agent then finds it by itself", table.Short(c.fault), lost))
	}
	return c.runtime, problems
}

// Counters returns the number of calls, and 1 while the runtime answers.
func (c *condition) Counters() (calls map[Call]uint64, answers float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connected {
		answers = 1
	}
	return maps.Clone(c.calls), answers
}
