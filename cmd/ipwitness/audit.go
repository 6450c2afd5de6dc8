package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	"github.com/ipwitness/ipwitness/ipam/registry"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// findingListing lists findings.
type findingListing = listing[*pb.ListFindingsResponse, *pb.WatchFindingsResponse, *pb.Finding]

// auditCommand contains the flags of audit.
type auditCommand struct {
	query
	kind    string
	fixPlan bool
	pools   []*pb.Pool // that were audited; not known for a time in the past
	silent  string     // the requested node, if it is disconnected
}

func newAudit(sys system) *cobra.Command {
	c := &auditCommand{query: query{sys: sys}}
	l := &findingListing{
		query: &c.query, kind: show.FindingKind, items: (*pb.ListFindingsResponse).GetFindings, item: (*pb.WatchFindingsResponse).GetFinding,
		paged: true,
		prepare: func(_ context.Context, _ url.Values, findings []*pb.Finding) []*pb.Finding {
			show.SortFindings(findings)
			return findings
		},
		counts: func(f *pb.Finding) bool { return f.GetSeverity() != pb.Finding_INFO },
		more: func(ask url.Values) {
			if c.kind != "" {
				ask.Set("kind", c.kind)
			}
		},
		page: func(_ context.Context, f *pb.Finding) error {
			if !c.at.IsZero() {
				f.Remedy, f.Fixes = nil, nil // steps of the past are not safe to follow now
			}
			return show.Finding(sys.stdout, f, c.layout(), c.now())
		},
		table: func(_ context.Context, findings []*pb.Finding) error {
			if err := show.Findings(sys.stdout, findings, c.layout(), c.now()); err != nil || len(c.pools) == 0 {
				return err
			}
			fmt.Fprintln(sys.stdout)
			return show.Pools(sys.stdout, c.pools, c.layout())
		},
	}
	l.none = c.none
	cmd := l.command("audit [THING] [flags]", "Compare IPAM records with the real owners of addresses", findingIDs, nodeNames)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		about := strings.Join(args, "")
		switch err := exclusive(c.fixPlan && !c.at.IsZero(), "--fix-plan", "--at", "a plan repairs the current state"); {
		case err != nil:
			return err
		case c.fixPlan && (c.watch || c.format != show.FormatTable):
			return errors.New("--fix-plan prints a shell script and cannot be combined with --watch or --output: remove them")
		case c.watch:
			if err := c.checkWatch(); err != nil {
				return err
			}
			if err := c.expect(cmd.Context(), about); err != nil {
				return err
			}
			return l.run(cmd.Context(), about)
		}
		return c.list(cmd.Context(), l, about)
	}
	l.add(cmd, "a finding above INFO", nil, "node", "namespace", "workload", "cidr", "mac", "incident")
	wordFlag(cmd, &c.kind, "kind", "KIND", "findings of this kind, like "+verdict.FindingLeaked, "a kind of finding", verdict.FindingKinds())
	cmd.Flags().BoolVar(&c.fixPlan, "fix-plan", false, "print a shell script that repairs IPAM")
	return cmd
}

// audited requests the pools. A fleet does not know those of its clusters.
func (c *auditCommand) audited(ctx context.Context, about string) error {
	_, err := pages(ctx, c.client(), "/v1/pools", nil, func(page *pb.ListPoolsResponse) bool {
		c.pools = append(c.pools, page.GetPools()...)
		return true
	})
	if isCode(err, codes.Unimplemented) {
		err = nil
	}
	c.pools = slices.DeleteFunc(c.pools, func(p *pb.Pool) bool {
		return about != "" && !addressed(about) && p.GetNode() != "" && p.GetNode() != about
	})
	return err
}

// checkSilent notes whether the thing is a node that is disconnected.
func (c *auditCommand) checkSilent(ctx context.Context, about string) error {
	if about == "" || addressed(about) || !c.at.IsZero() {
		return nil
	}
	nodes, err := c.nodes(ctx)
	if slices.Contains(nodes.GetCoverage().GetSilentNodes(), about) || slices.ContainsFunc(nodes.GetNodes(), func(n *pb.Node) bool {
		return n.GetName() == about && n.GetState() != pb.Node_LIVE
	}) {
		c.silent = about
	}
	return err
}

// onDemand returns the findings that are looked for only when somebody asks about an address.
func (c *auditCommand) onDemand(ctx context.Context, address string) []*pb.Finding {
	e := &pb.ExplainResponse{}
	if err := c.client().get(ctx, "/v1/explain", c.within(url.Values{"address": {address}, "senders": {"true"}}), e); err != nil {
		c.note("Warning: the connection tracking of nodes was not looked at: %s.", err)
	}
	if unseen := show.NotLookedAt(e.GetUnseen()); unseen != "" {
		c.note("Warning: not all connection tracking was looked at: not that of %s.", unseen)
	}
	return slices.DeleteFunc(e.GetFindings(), func(f *pb.Finding) bool { return f.GetKind() != verdict.FindingNATToFormerOwner })
}

// list shows findings as tables, or the details of the findings of one address or id. The pools and nodes of
// the past are not known.
func (c *auditCommand) list(ctx context.Context, l *findingListing, about string) error {
	ask, err := l.ask(about)
	if err != nil {
		return err
	}
	findings, coverage, err := l.list(ctx, ask)
	// A plan is of problems that last. If nothing else is awaited, whether they do is known within seconds.
	other := func(a *pb.Awaited) bool { return a.GetWhat() != pb.Awaited_JUDGEMENT }
	for range 30 {
		if err != nil || !c.fixPlan || len(coverage.GetAwaited()) == 0 || slices.ContainsFunc(coverage.GetAwaited(), other) {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(300 * time.Millisecond):
		}
		findings, coverage, err = l.list(ctx, ask)
	}
	if err != nil {
		return c.unknownAt(err)
	}
	if c.fixPlan && coverage.GetClusters() > 0 {
		return errors.New("a fleet knows no steps to repair IPAM: run --fix-plan with the aggregator of the cluster (--server)")
	}
	if isAddress(about) && c.at.IsZero() && !c.fixPlan && c.kind == "" && len(c.filters.given()) == 0 {
		findings = append(findings, c.onDemand(ctx, about)...)
		show.SortFindings(findings)
	}
	if len(findings) == 0 {
		if err := errors.Join(c.checkNode(ctx, c.filters.get("node")), c.checkSilent(ctx, about)); err != nil {
			return err
		}
	}
	if c.at.IsZero() {
		if err = c.audited(ctx, about); err != nil {
			return err
		}
	}
	c.warn(coverage)
	if len(findings) == 0 && c.silent == "" {
		if err := c.checkThing(ctx, about, coverage); err != nil {
			return err
		}
	}
	if !c.fixPlan {
		return errors.Join(l.show(ctx, about, findings, coverage), c.found(findings, coverage))
	}
	nodes, err := c.nodes(ctx)
	if err == nil {
		err = show.FixPlan(c.sys.stdout, findings, show.Origin{
			Server: c.client().base, Nodes: nodes.GetNodes(), Coverage: coverage, Now: c.sys.now(),
		})
	}
	return errors.Join(err, c.found(findings, coverage))
}

// none prints that there are no findings, what was audited, and the pools.
func (c *auditCommand) none(ctx context.Context, about string, coverage *pb.Coverage) error {
	what, known := "", ""
	if c.kind != "" {
		what = " of kind " + c.kind
	}
	if c.filtered() {
		what += " that matches the filters"
	}
	if about != "" {
		what += " about " + about
	}
	if coverage.GetIncomplete() || c.gap != nil {
		known = " is known"
	}
	switch {
	case c.silent != "":
		c.note("Cannot tell: no finding%s is known, and node %s is disconnected.", what, c.silent)
	case !c.at.IsZero() || coverage.GetClusters() > 0:
		c.note("No finding%s%s.", what, known)
	case len(c.pools) > 0:
		c.note("No finding%s%s. Audited: %s.", what, known, show.Audited(c.pools))
	case about != "" && !addressed(about):
		c.note("No finding%s%s. No records of IPAM are audited there, because no address pool is known.", what, known)
	default:
		nodes, err := c.nodes(ctx)
		if err != nil {
			return err
		}
		c.note("No finding%s, but no records of IPAM are audited: %s.", what, notAudited(nodes, c.sys.program))
	}
	if len(c.pools) == 0 || addressed(about) {
		return nil
	}
	return show.Pools(c.sys.stdout, c.pools, c.layout())
}

// notAudited returns the reason why no records of IPAM are audited.
func notAudited(nodes *pb.ListNodesResponse, program string) string {
	why := "no agent has found records of " + registry.Titles("or", registry.OfNodes)
	if len(nodes.GetNodes()) == 0 {
		why = "no agent has connected yet"
	}
	switch nodes.GetKubernetes().GetState() {
	case pb.Kubernetes_LIVE, pb.Kubernetes_STALE:
		return why + ", and the Kubernetes API has no records of " + registry.Titles("or", registry.OfCluster)
	case pb.Kubernetes_SYNCING:
		return why + ", and the Kubernetes API has not been read yet: see '" + program + " nodes'"
	default:
		return why + ", and no Kubernetes API is configured to read the records of " + registry.Titles("and", registry.OfCluster) + " (--kubeconfig)"
	}
}

// found returns the exit code for findings. Informational findings do not count. Finding nothing is
// a result only if something is audited, as far as the server knows, and everything is seen.
func (c *auditCommand) found(findings []*pb.Finding, coverage *pb.Coverage) error {
	if !c.exitCode && !c.fixPlan {
		return nil
	}
	counts := func(f *pb.Finding) bool { return f.GetSeverity() != pb.Finding_INFO }
	if err := c.conclude(c.exitCode && slices.ContainsFunc(findings, counts), coverage); err != nil || !c.at.IsZero() {
		return err
	}
	why := "node " + c.silent + " is disconnected"
	if c.silent == "" {
		why = "no records of IPAM are audited, because no address pool is known"
		if len(findings) > 0 || c.kind != "" || len(c.pools) > 0 || coverage.GetClusters() > 0 {
			return nil
		}
	}
	if c.fixPlan || c.format.ForPrograms() {
		c.note("Cannot tell: %s.", why)
	}
	return exitCannotTell
}

// expect prints before a watch if nothing will be shown.
func (c *auditCommand) expect(ctx context.Context, about string) error {
	if err := errors.Join(c.checkSilent(ctx, about), c.audited(ctx, about)); err != nil {
		return err
	}
	if c.silent == "" {
		if err := c.checkThing(ctx, about, nil); err != nil {
			return err
		}
	} else {
		c.note("Node %s is disconnected: ipwitness does not see what happens there.", c.silent)
	}
	if len(c.pools) > 0 {
		return nil
	}
	nodes, err := c.nodes(ctx)
	if err == nil && nodes.GetCoverage().GetClusters() == 0 {
		c.note("No records of IPAM are audited: %s. Findings appear here as soon as something is audited.", notAudited(nodes, c.sys.program))
	}
	return err
}
