package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// about selects findings by address, or by a name that is an id or a node.
type about struct{ address, name string }

// nodeName matches names of nodes and ids of findings.
var nodeName = regexp.MustCompile(`^[A-Za-z0-9][-_.@A-Za-z0-9]*$`)

// parseAbout parses the argument of audit.
func parseAbout(arg string) (about, error) {
	if arg == "" {
		return about{}, nil
	}
	if addr, err := parseAddress(arg); err == nil {
		return about{address: addr.String()}, nil
	}
	if !nodeName.MatchString(arg) {
		return about{}, fmt.Errorf("%q is not the id of a finding, an address (10.244.0.7) or the name of a node", arg)
	}
	return about{name: arg}, nil
}

// id reports whether a finding has the name as its id.
func (a about) id(f *pb.Finding) bool { return a.name != "" && f.GetId() == a.name }

// keep reports whether a finding is selected.
func (a about) keep(f *pb.Finding) bool {
	switch {
	case a.address != "":
		return f.GetAddress() == a.address || slices.Contains(f.GetAddresses(), a.address)
	case a.name != "":
		return a.id(f) || slices.Contains(show.FindingNodes(f), a.name)
	}
	return true
}

// findings returns the findings that the command asks for. known reports whether any
// finding has the requested ID or node, even if it is of another kind.
func (c *auditCommand) findings(ctx context.Context, about about) (findings []*pb.Finding, known bool, coverage *pb.Coverage, err error) {
	if about.name != "" && c.narrowing == (narrowing{}) && !c.at.set() && len(c.clusters) == 0 {
		f, err := c.finding(ctx, about.name)
		if err == nil {
			if c.kind == "" || f.GetKind() == c.kind {
				findings = append(findings, f)
			}
			coverage, err = c.coverage(ctx)
			return findings, true, coverage, err
		}
		if !unknown(err) {
			return nil, false, nil, err
		}
	}
	ask := url.Values{}
	if about.address != "" {
		ask.Set("address", about.address)
	}
	if c.kind != "" && about.name == "" {
		ask.Set("kind", c.kind)
	}
	if err := c.ask(ask); err != nil {
		return nil, false, nil, err
	}
	c.at.ask(c.within(ask))
	coverage, err = pages(ctx, c.client(), "/v1/findings", ask, (*pb.ListFindingsResponse)(nil), func(page *pb.ListFindingsResponse) {
		c.at.read(page)
		for _, f := range page.GetFindings() {
			if !about.keep(f) {
				continue
			}
			known = true
			if c.kind == "" || f.GetKind() == c.kind {
				findings = append(findings, f)
			}
		}
	})
	return findings, known, coverage, err
}

// finding requests the finding with an id. The error of a finding that does not exist is unknown.
func (q *query) finding(ctx context.Context, id string) (*pb.Finding, error) {
	f := &pb.Finding{}
	return f, q.client().get(ctx, "/v1/findings/"+url.PathEscape(id), nil, f)
}

// unknown reports whether the server answered that what the request names does not exist.
func unknown(err error) bool {
	refused, ok := errors.AsType[*serverError](err)
	return ok && refused.code == codes.NotFound
}
