package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	"github.com/ipwitness/ipwitness/ipam/registry"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// auditCommand contains the flags of audit.
type auditCommand struct {
	query
	narrowing
	at                       moment
	kind                     string
	exitCode, fixPlan, watch bool
}

func newAudit(sys system) *cobra.Command {
	c := &auditCommand{query: query{sys: sys}}
	cmd := &cobra.Command{
		Use:   "audit [ID|ADDRESS|NODE] [flags]",
		Short: "Compare IPAM records with the real owners of addresses",
		Long: `Compare IPAM records with the real owners of addresses, to find future duplicates.

` + fold("Supported IPAMs are "+registry.Titles("and", registry.Any)+".") + `

A CRITICAL finding is an address in use that IPAM will allocate again. A WARNING is a
problem that grows, such as leaked addresses or a pool that runs out. With an ID or an
ADDRESS, show all details: the evidence, the steps to take and their commands. With the
name of a NODE, list the findings of that node.

--fix-plan prints a shell script that repairs IPAM; ipwitness itself changes nothing.
If not all nodes are seen, the script may lack steps, and the exit code is 3.

With --at, list the findings at a time in the past, without the pools and the steps.
` + timesHelp + `

Nodes that are not seen are listed on stderr, and with -o json under "coverage".`,
		Example: `
  ipwitness audit
  ipwitness audit 10.244.0.7
  ipwitness audit --kind leaked -o wide
  ipwitness audit --at "yesterday 14:03"
  ipwitness audit --fix-plan > plan.sh
  ipwitness audit --exit-code || echo "IPAM is wrong, or not everything is seen"`,
		Args:              atMostOne("the ID or the ADDRESS of a finding, or the name of a NODE"),
		ValidArgsFunction: c.completeArgument(&c.narrowing, findingIDs, nodeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			about, err := parseAbout(slices.Concat(args, []string{""})[0])
			switch {
			case err != nil:
				return err
			case c.watch && c.exitCode:
				return errExitCodeWatch
			case c.watch && c.format == show.FormatCSV:
				return errCSVWatch
			case c.fixPlan && (c.watch || c.format != show.FormatTable):
				return errors.New("--fix-plan prints a shell script and cannot be combined with --watch or --output: remove them")
			case c.watch && c.at.set():
				return errWatchAt
			case c.fixPlan && c.at.set():
				return errors.New("--fix-plan and --at cannot be combined, because a plan repairs the current state: remove one of them")
			case c.watch:
				return c.follow(cmd.Context(), about)
			case c.at.set():
				return c.past(cmd.Context(), about)
			}
			return c.list(cmd.Context(), about)
		},
	}
	c.addListFlags(cmd)
	c.addClusterFlag(cmd, "findings")
	c.narrowing.addFlags(cmd, "findings", "node", "namespace", "workload", "cidr", "mac")
	c.completeFilters(cmd, &c.narrowing)
	watchFlag(cmd, &c.watch)
	c.at.addFlag(cmd, sys)
	kinds := verdict.FindingKinds()
	cmd.Flags().Var(cli.NewValue(&c.kind, "KIND", parseKind), "kind", "findings of this kind, like "+verdict.FindingLeaked)
	cli.CompleteFlag(cmd, "kind", kinds)
	cmd.Flags().BoolVar(&c.fixPlan, "fix-plan", false, "print a shell script that repairs IPAM")
	cmd.Flags().BoolVar(&c.exitCode, "exit-code", false, exitCodeHelp("a finding above INFO"))
	return cmd
}

// parseKind accepts a kind of finding.
func parseKind(s string) (string, error) {
	if kinds := verdict.FindingKinds(); !slices.Contains(kinds, s) {
		return "", fmt.Errorf("%q is not a kind of finding: use one of %s", s, strings.Join(kinds, ", "))
	}
	return s, nil
}

// A basis is the data that findings were derived from.
type basis struct {
	coverage *pb.Coverage
	pools    []*pb.Pool
	// unknown is set if the server does not list its pools.
	unknown bool
	// silent is the requested node, if it is disconnected.
	silent string
}

// nothing reports whether no pool is audited.
func (a *basis) nothing() bool { return len(a.pools) == 0 && !a.unknown }

// basis requests the data that findings are derived from.
func (c *auditCommand) basis(ctx context.Context, about about, coverage *pb.Coverage) (*basis, error) {
	a := &basis{coverage: coverage}
	_, err := pages(ctx, c.client(), "/v1/pools", nil, (*pb.ListPoolsResponse)(nil), func(page *pb.ListPoolsResponse) {
		for _, p := range page.GetPools() {
			if about.name == "" || p.GetNode() == "" || p.GetNode() == about.name {
				a.pools = append(a.pools, p)
			}
		}
	})
	if old, ok := errors.AsType[*serverError](err); ok && old.code == codes.Unimplemented {
		a.unknown, err = true, nil
	}
	return a, err
}

// list shows findings as tables, or the details of the findings of one address or id.
func (c *auditCommand) list(ctx context.Context, about about) error {
	findings, known, coverage, err := c.findings(ctx, about)
	if err != nil {
		return err
	}
	if c.fixPlan && coverage.GetClusters() > 0 {
		return errPlanOfFleet
	}
	if len(findings) == 0 {
		if err := c.checkNode(ctx, c.node); err != nil {
			return err
		}
	}
	show.SortFindings(findings)
	a, err := c.basis(ctx, about, coverage)
	if err != nil {
		return err
	}
	c.warn(coverage)
	if about.name != "" && !known {
		if a.silent, err = c.silent(ctx, about.name, coverage); err != nil {
			return err
		}
	}
	switch {
	case c.fixPlan:
		err = c.plan(ctx, findings, a)
	case c.format.ForPrograms():
		err = show.List(c.sys.stdout, c.format, "findings", findings, c.at.basis(coverage))
	case len(findings) > 0 && (about.address != "" || about.id(findings[0])):
		err = c.inFull(findings)
	default:
		err = c.tables(ctx, findings, about, a)
	}
	return errors.Join(err, c.found(findings, a))
}

// past shows the findings at a time in the past. The pools and nodes of that time are not known.
func (c *auditCommand) past(ctx context.Context, about about) error {
	findings, _, coverage, err := c.findings(ctx, about)
	if err != nil {
		return c.unknownAt(&c.at, c.exitCode, err)
	}
	show.SortFindings(findings)
	c.warn(coverage)
	c.noteMoment(&c.at)
	switch {
	case c.format.ForPrograms():
		err = show.List(c.sys.stdout, c.format, "findings", findings, c.at.basis(coverage))
	case len(findings) == 0:
		c.note("No finding%s.", c.selected(about))
	case about.address != "" || about.id(findings[0]):
		err = c.inFull(findings)
	default:
		err = show.Findings(c.sys.stdout, findings, c.layout(), c.at.now(c.sys))
	}
	if err != nil || !c.exitCode {
		return err
	}
	return c.concludeAt(&c.at, slices.ContainsFunc(findings, counts), coverage)
}

// silent looks up a node by name. It returns the name if the node is disconnected, and an error if
// there is no such node.
func (c *auditCommand) silent(ctx context.Context, name string, coverage *pb.Coverage) (string, error) {
	var nodes pb.ListNodesResponse
	if err := c.client().get(ctx, "/v1/nodes", c.within(nil), &nodes); err != nil {
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
	if c.narrowing != (narrowing{}) || len(c.clusters) > 0 {
		matching = " that matches the filters"
	}
	return "", fmt.Errorf("there is no finding with the id %[1]q%[3]s and no node of that name: '%[2]s audit' lists the findings, '%[2]s nodes' lists the nodes",
		name, c.sys.program, matching)
}

// inFull shows the details of findings, one after the other.
func (c *auditCommand) inFull(findings []*pb.Finding) error {
	for i, f := range findings {
		if i > 0 {
			if _, err := fmt.Fprint(c.sys.stdout, "\n\n"); err != nil {
				return err
			}
		}
		if c.at.set() {
			f.Remedy, f.Fixes = nil, nil // steps of the past are not safe to follow now
		}
		if err := show.Finding(c.sys.stdout, f, c.layout(), c.at.now(c.sys)); err != nil {
			return err
		}
	}
	return nil
}

// tables shows findings and the audited pools, or prints that there are no findings.
func (c *auditCommand) tables(ctx context.Context, findings []*pb.Finding, about about, a *basis) error {
	if len(findings) == 0 {
		if err := c.noteNone(ctx, about, a); err != nil {
			return err
		}
	} else if err := show.Findings(c.sys.stdout, findings, c.layout(), c.sys.now()); err != nil {
		return err
	}
	if about.address != "" || len(a.pools) == 0 {
		return nil
	}
	if len(findings) > 0 {
		fmt.Fprintln(c.sys.stdout)
	}
	return show.Pools(c.sys.stdout, a.pools, c.layout())
}

// noteNone prints that nothing was found, and what was audited.
func (c *auditCommand) noteNone(ctx context.Context, about about, a *basis) error {
	what := c.selected(about)
	switch {
	case a.silent != "":
		c.note("Cannot tell: no finding%s is known, and node %s is disconnected.", what, a.silent)
	case a.unknown:
		c.note("No finding%s. This server does not report what it audits.", what)
	case len(a.pools) > 0:
		c.note("No finding%s. Audited: %s.", what, show.Audited(a.pools))
	case about.name != "":
		c.note("No finding%s. Nothing is audited there, because no address pool is known.", what)
	default:
		why, err := c.notAudited(ctx)
		if err != nil {
			return err
		}
		c.note("No finding%s, because nothing is audited: %s.", what, why)
	}
	return nil
}

// selected describes the findings that the command asks for, to follow "No finding".
func (c *auditCommand) selected(about about) string {
	what := ""
	if c.kind != "" {
		what = " of kind " + c.kind
	}
	if c.narrowing != (narrowing{}) || len(c.clusters) > 0 {
		what += " that matches the filters"
	}
	switch {
	case about.address != "":
		what += " about " + about.address
	case about.name != "":
		what += " about " + about.name
	}
	return what
}

// notAudited asks the server for the reason why nothing is audited.
func (c *auditCommand) notAudited(ctx context.Context) (string, error) {
	var nodes pb.ListNodesResponse
	if err := c.client().get(ctx, "/v1/nodes", c.within(nil), &nodes); err != nil {
		return "", err
	}
	return notAudited(&nodes, c.sys.program), nil
}

// notAudited returns the reason why nothing is audited.
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

// counts reports whether a finding counts for the exit code.
func counts(f *pb.Finding) bool { return f.GetSeverity() != pb.Finding_INFO }

// found returns the exit code for findings. Informational findings do not count. Finding nothing is
// a result only if something is audited and everything is seen.
func (c *auditCommand) found(findings []*pb.Finding, a *basis) error {
	if !c.exitCode && !c.fixPlan {
		return nil
	}
	found := c.exitCode && slices.ContainsFunc(findings, counts)
	if err := c.conclude(found, a.coverage); err != nil {
		return err
	}
	if a.silent != "" || len(findings) == 0 && c.kind == "" && a.nothing() {
		if c.fixPlan || c.format.ForPrograms() {
			c.note("Cannot tell: %s.", a.why())
		}
		return exitCannotTell
	}
	return nil
}

// why returns why the result is inconclusive, although every expected node is seen.
func (a *basis) why() string {
	if a.silent != "" {
		return "node " + a.silent + " is disconnected"
	}
	return "nothing is audited, because no address pool is known"
}

// plan prints the script that repairs IPAM.
func (c *auditCommand) plan(ctx context.Context, findings []*pb.Finding, a *basis) error {
	var nodes pb.ListNodesResponse
	if err := c.client().get(ctx, "/v1/nodes", nil, &nodes); err != nil {
		return err
	}
	return show.FixPlan(c.sys.stdout, findings, show.Origin{
		Server: c.client().base, Program: c.sys.program, Nodes: nodes.GetNodes(), Coverage: a.coverage, Now: c.sys.now(),
	})
}

// follow shows findings as they appear, change and end.
func (c *auditCommand) follow(ctx context.Context, about about) error {
	ask := url.Values{}
	if c.kind != "" {
		ask.Set("kind", c.kind)
	}
	if about.address != "" {
		ask.Set("address", about.address)
	}
	if err := c.ask(ask); err != nil {
		return err
	}
	keep := func(f *pb.Finding) bool { return about.keep(f) && (c.kind == "" || f.GetKind() == c.kind) }
	return followTable(ctx, &c.query, "/v1/findings:watch", c.within(ask), show.NewFindingWatch(c.sys.stdout, c.layout()), "finding",
		(*pb.WatchFindingsResponse).GetFinding, keep, func() error { return c.checkWatched(ctx, about) })
}

// checkWatched warns if a watch will show nothing: it returns an error for an unknown ID
// or node, and prints a message if nothing is audited. It ignores a server that cannot
// be reached, because the watch reports that itself.
func (c *auditCommand) checkWatched(ctx context.Context, about about) error {
	_, known, coverage, err := c.findings(ctx, about)
	if err != nil {
		return nil
	}
	var refused *serverError
	var unreachable *unreachableError
	if about.name != "" && !known {
		silent, err := c.silent(ctx, about.name, coverage)
		switch {
		case errors.As(err, &refused), errors.As(err, &unreachable):
			return nil
		case err != nil:
			return err
		case silent != "":
			c.note("Node %s is disconnected: ipwitness does not see what happens there.", silent)
		}
	}
	if a, err := c.basis(ctx, about, coverage); err == nil && a.nothing() {
		if why, err := c.notAudited(ctx); err == nil {
			c.note("Nothing is audited: %s. Findings appear here as soon as something is audited.", why)
		}
	}
	return nil
}
