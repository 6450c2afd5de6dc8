package main

import (
	"cmp"
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

// auditCommand contains the flags of audit.
type auditCommand struct {
	query
	address string // the requested address
	name    string // the requested id or node
	kind    string
	fixPlan bool
	pools   []*pb.Pool // that were audited; not known for a time in the past
	silent  string     // the requested node, if it is disconnected
}

func newAudit(sys system) *cobra.Command {
	c := &auditCommand{query: query{sys: sys}}
	cmd := &cobra.Command{
		Use:               "audit [ID|ADDRESS|NODE] [flags]",
		Short:             "Compare IPAM records with the real owners of addresses",
		Args:              argument("the ID or the ADDRESS of a finding, or the name of a NODE", ""),
		ValidArgsFunction: c.completeArgument(findingIDs, nodeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			arg := strings.Join(args, "")
			var err error
			if addr, failed := parseAddress(arg); failed == nil {
				c.address = addr.String()
			} else if arg != "" && !nodeName.MatchString(arg) {
				err = fmt.Errorf("%q is not the id of a finding, an address (10.244.0.7) or the name of a node", arg)
			} else {
				c.name = arg
			}
			if err := cmp.Or(err, c.checkWatch(),
				exclusive(c.fixPlan && !c.at.IsZero(), "--fix-plan", "--at", "a plan repairs the current state")); err != nil {
				return err
			}
			switch {
			case c.fixPlan && (c.watch || c.format != show.FormatTable):
				return errors.New("--fix-plan prints a shell script and cannot be combined with --watch or --output: remove them")
			case c.watch:
				return c.follow(cmd.Context())
			}
			return c.list(cmd.Context())
		},
	}
	c.addListFlags(cmd)
	c.addClusterFlag(cmd, "findings in the cluster")
	c.addFilters(cmd, "findings", nil, "node", "namespace", "workload", "cidr", "mac", "incident")
	c.addWatchFlag(cmd)
	c.addAtFlag(cmd)
	wordFlag(cmd, &c.kind, "kind", "KIND", "findings of this kind, like "+verdict.FindingLeaked, "a kind of finding", verdict.FindingKinds())
	cmd.Flags().BoolVar(&c.fixPlan, "fix-plan", false, "print a shell script that repairs IPAM")
	c.addExitCodeFlag(cmd, "a finding above INFO")
	return cmd
}

// keep reports whether a finding is selected.
func (c *auditCommand) keep(f *pb.Finding) bool {
	if c.address != "" {
		return f.GetAddress() == c.address || slices.Contains(f.GetAddresses(), c.address)
	}
	return c.name == "" || f.GetId() == c.name || slices.Contains(show.FindingNodes(f), c.name)
}

// ask returns the parameters of a request for findings.
func (c *auditCommand) ask(kind string) (url.Values, error) {
	ask := url.Values{}
	if c.address != "" {
		ask.Set("address", c.address)
	}
	if kind != "" {
		ask.Set("kind", kind)
	}
	return ask, c.filters.ask(ask)
}

// findings returns the findings that the command asks for. known reports whether any
// finding has the requested ID or node, even if it is of another kind.
func (c *auditCommand) findings(ctx context.Context) (findings []*pb.Finding, known bool, coverage *pb.Coverage, err error) {
	kind := c.kind
	if c.name != "" {
		kind = ""
		if c.at.IsZero() && !c.filtered() {
			f := &pb.Finding{}
			err := c.client().get(ctx, "/v1/findings/"+url.PathEscape(c.name), nil, f)
			if err == nil {
				findings, known = []*pb.Finding{f}, true
				coverage, err = c.coverage(ctx)
			}
			if err != nil && !unknown(err) {
				return nil, false, nil, err
			}
		}
	}
	if !known {
		ask, err := c.ask(kind)
		if err == nil {
			findings, coverage, err = list(ctx, &c.query, "/v1/findings", ask, (*pb.ListFindingsResponse).GetFindings)
		}
		if err != nil {
			return nil, false, nil, err
		}
	}
	findings = slices.DeleteFunc(findings, func(f *pb.Finding) bool { return !c.keep(f) })
	known = len(findings) > 0
	findings = slices.DeleteFunc(findings, func(f *pb.Finding) bool { return c.kind != "" && f.GetKind() != c.kind })
	show.SortFindings(findings)
	return findings, known, coverage, nil
}

// audited requests the pools. A fleet does not know those of its clusters.
func (c *auditCommand) audited(ctx context.Context) error {
	_, err := pages(ctx, c.client(), "/v1/pools", nil, func(page *pb.ListPoolsResponse) bool {
		c.pools = append(c.pools, page.GetPools()...)
		return true
	})
	if isCode(err, codes.Unimplemented) {
		err = nil
	}
	c.pools = slices.DeleteFunc(c.pools, func(p *pb.Pool) bool { return c.name != "" && p.GetNode() != "" && p.GetNode() != c.name })
	return err
}

// onDemand returns the findings that are looked for only when somebody asks about an address.
func (c *auditCommand) onDemand(ctx context.Context) []*pb.Finding {
	e := &pb.ExplainResponse{}
	if err := c.client().get(ctx, "/v1/explain", c.within(url.Values{"address": {c.address}, "senders": {"true"}}), e); err != nil {
		c.note("Warning: the connection tracking of nodes was not looked at: %s.", err)
	}
	return slices.DeleteFunc(e.GetFindings(), func(f *pb.Finding) bool { return f.GetKind() != verdict.FindingNATToFormerOwner || !c.keep(f) })
}

// list shows findings as tables, or the details of the findings of one address or id. The pools and nodes of
// the past are not known.
func (c *auditCommand) list(ctx context.Context) error {
	findings, known, coverage, err := c.findings(ctx)
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
		findings, known, coverage, err = c.findings(ctx)
	}
	if err != nil {
		return c.unknownAt(err)
	}
	if c.fixPlan && coverage.GetClusters() > 0 {
		return errors.New("a fleet knows no steps to repair IPAM: run --fix-plan with the aggregator of the cluster (--server)")
	}
	if c.address != "" && c.at.IsZero() && !c.fixPlan && c.kind == "" {
		findings = append(findings, c.onDemand(ctx)...)
	}
	if len(findings) == 0 {
		if err := c.checkNode(ctx, c.filters.get("node")); err != nil {
			return err
		}
	}
	if c.at.IsZero() {
		if err = c.audited(ctx); err != nil {
			return err
		}
	}
	c.warn(coverage)
	if c.at.IsZero() && c.name != "" && !known {
		if c.silent, err = c.checkName(ctx, coverage); err != nil {
			return err
		}
	}
	switch {
	case c.fixPlan:
		var nodes *pb.ListNodesResponse
		if nodes, err = c.nodes(ctx); err == nil {
			err = show.FixPlan(c.sys.stdout, findings, show.Origin{
				Server: c.client().base, Nodes: nodes.GetNodes(), Coverage: coverage, Now: c.sys.now(),
			})
		}
	case c.format.ForPrograms():
		err = show.List(c.sys.stdout, c.format, show.FindingKind, findings, c.basis(coverage)...)
	case len(findings) > 0 && (c.address != "" || c.name != "" && findings[0].GetId() == c.name):
		err = inFull(&c.query, findings, func(f *pb.Finding) error {
			if !c.at.IsZero() {
				f.Remedy, f.Fixes = nil, nil // steps of the past are not safe to follow now
			}
			return show.Finding(c.sys.stdout, f, c.layout(), c.now())
		})
	default:
		err = c.tables(ctx, findings, coverage)
	}
	return errors.Join(err, c.found(findings, coverage))
}

// checkName looks up the node that the command asks for. It returns its name if the node is disconnected, and an
// error if there is no such node.
func (c *auditCommand) checkName(ctx context.Context, coverage *pb.Coverage) (silent string, err error) {
	name := c.name
	nodes, err := c.nodes(ctx)
	if err != nil {
		return "", err
	}
	known := slices.Contains(coverage.GetSilentNodes(), name)
	for _, n := range nodes.GetNodes() {
		if n.GetName() != name {
			continue
		}
		if n.GetState() == pb.Node_LIVE {
			return "", nil
		}
		known = true
	}
	switch {
	case known:
		return name, nil
	case c.exitCode && coverage.GetIncomplete():
		c.note("No finding with the id %[1]s and no node %[1]s is known so far.", name)
		return "", exitCannotTell // an unseen node or finding may have this name
	}
	matching := ""
	if c.filtered() {
		matching = " that matches the filters"
	}
	return "", fmt.Errorf("there is no finding with the id %[1]q%[3]s and no node of that name: '%[2]s audit' lists the findings, '%[2]s nodes' lists the nodes",
		name, c.sys.program, matching)
}

// tables shows findings and the audited pools, or prints that nothing was found, and what was audited.
func (c *auditCommand) tables(ctx context.Context, findings []*pb.Finding, coverage *pb.Coverage) error {
	what, known := "", ""
	if c.kind != "" {
		what = " of kind " + c.kind
	}
	if c.filtered() {
		what += " that matches the filters"
	}
	if name := c.address + c.name; name != "" {
		what += " about " + name
	}
	if coverage.GetIncomplete() || c.gap != nil {
		known = " is known"
	}
	switch {
	case len(findings) > 0:
		if err := show.Findings(c.sys.stdout, findings, c.layout(), c.now()); err != nil {
			return err
		}
	case c.silent != "":
		c.note("Cannot tell: no finding%s is known, and node %s is disconnected.", what, c.silent)
	case !c.at.IsZero() || coverage.GetClusters() > 0:
		c.note("No finding%s%s.", what, known)
	case len(c.pools) > 0:
		c.note("No finding%s%s. Audited: %s.", what, known, show.Audited(c.pools))
	case c.name != "":
		c.note("No finding%s%s. No records of IPAM are audited there, because no address pool is known.", what, known)
	default:
		nodes, err := c.nodes(ctx)
		if err != nil {
			return err
		}
		c.note("No finding%s, but no records of IPAM are audited: %s.", what, notAudited(nodes, c.sys.program))
	}
	if c.address != "" || len(c.pools) == 0 {
		return nil
	}
	if len(findings) > 0 {
		fmt.Fprintln(c.sys.stdout)
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

// follow shows findings as they appear, change and end. First, it says if nothing will be shown.
func (c *auditCommand) follow(ctx context.Context) error {
	ask, err := c.ask(c.kind)
	if err != nil {
		return err
	}
	if c.name != "" {
		_, known, coverage, err := c.findings(ctx)
		if err == nil && !known {
			c.silent, err = c.checkName(ctx, coverage)
		}
		if err != nil {
			return err
		}
	}
	if c.silent != "" {
		c.note("Node %s is disconnected: ipwitness does not see what happens there.", c.silent)
	}
	if err := c.audited(ctx); err != nil {
		return err
	}
	if len(c.pools) == 0 {
		nodes, err := c.nodes(ctx)
		if err != nil {
			return err
		}
		if nodes.GetCoverage().GetClusters() == 0 {
			c.note("No records of IPAM are audited: %s. Findings appear here as soon as something is audited.", notAudited(nodes, c.sys.program))
		}
	}
	return tableWatch[*pb.WatchFindingsResponse, *pb.Finding]{
		kind: show.FindingKind, ask: ask, item: (*pb.WatchFindingsResponse).GetFinding,
		keep: func(f *pb.Finding) bool { return c.keep(f) && (c.kind == "" || f.GetKind() == c.kind) },
	}.run(ctx, &c.query)
}
