// Package access says who calls an aggregator, and what that caller may do: an agent
// may report for its own node, people may read, and who may acknowledge needs more.
//
// A caller is known by a bearer token (one of a file, or of Kubernetes) or by a
// client certificate. All calls, of gRPC and of REST, pass one table of actions
// (actions.go); a method that is not in it is refused. Nothing here knows of
// addresses, and no secret is logged or kept longer than its caller.
package access

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Values of Config.Anonymous.
const (
	// AnonymousAuto lets who names nobody read, unless the Config knows anybody.
	AnonymousAuto = "auto"
	// AnonymousNone refuses who names nobody.
	AnonymousNone = "none"
	// AnonymousRead lets who names nobody read.
	AnonymousRead = "read"
)

// DefaultAudience is what a token of Kubernetes must be meant for.
const DefaultAudience = "ipwitness"

// The organizations (O) of a client certificate's subject that have a meaning.
const (
	AgentsGroup    = "ipwitness:agents"
	ReadersGroup   = "ipwitness:readers"
	OperatorsGroup = "ipwitness:operators"
)

// Config says by what callers are known. With none of it there is no access control:
// all may report and read, and who is on this host may acknowledge.
type Config struct {
	// Tokens is a file of bearer tokens, a line each: TOKEN ROLE NAME.
	Tokens string
	// Certificates verifies a client certificate, with its chain, by whom is believed now;
	// nil where none is. With it, an agent must show one.
	Certificates func(chain []*x509.Certificate) error
	// TokenReview has tokens reviewed by Kubernetes.
	TokenReview bool
	// Audience is what a token must be meant for.
	Audience string
	// AgentAccounts are the service accounts of agents, as NAMESPACE/NAME.
	AgentAccounts []string
	// Anonymous is AnonymousAuto, AnonymousNone or AnonymousRead; empty for auto.
	Anonymous string
	// Required makes New reject a Config that provides no way to authenticate callers.
	Required bool
}

// known tells whether callers are known by anything.
func (c Config) known() bool { return c.Tokens != "" || c.Certificates != nil || c.TokenReview }

// Subject is whom Kubernetes says that a token is of.
type Subject struct {
	Name, UID string
	Groups    []string
	Extra     map[string][]string
}

// nodeName is where Kubernetes says on which node the pod of a token is, from 1.30 on.
const nodeName = "authentication.kubernetes.io/node-name"

// Reviewer is the Kubernetes API that tokens and rights are asked of.
type Reviewer interface {
	// ReviewToken gives whom a token is of that is meant for an audience; empty for that
	// of the API server. ErrRefused is in the error where the token is no good.
	ReviewToken(ctx context.Context, token, audience string) (Subject, error)
	// ReviewAccess tells whether a subject may do something.
	ReviewAccess(ctx context.Context, who Subject, what Action) (bool, error)
}

// ErrRefused tells that Kubernetes has looked at a token and does not take it.
var ErrRefused = errors.New("not accepted")

// Caller is who calls.
type Caller struct {
	// name is who it is; empty for nobody.
	name string
	// agent tells that it may report, for the node of this name; where that is empty, for any.
	agent bool
	node  string
	// reader and operator say what else it may do; or subject, whose rights Kubernetes knows.
	reader, operator bool
	subject          *Subject
	// from is by what it is asked again whether it still is who it was.
	from credential
	// revoked is closed when it is not any more.
	revoked chan struct{}
}

// credential is what a caller shows.
type credential struct {
	token       string
	certificate *x509.Certificate // verified when the connection was made
	chain       []*x509.Certificate
	remote      netip.Addr
	// host is what a browser thinks that it speaks to.
	host string
}

// Guard knows callers and their rights. Use New.
type Guard struct {
	cfg      Config
	log      *slog.Logger
	tokens   *tokens
	reviews  *reviews
	accounts []string // of agents, by the names that Kubernetes gives them
	limits   limits
	hostname string
	refused  *prometheus.CounterVec
}

// New makes a guard. reviewer is needed for reviews only.
func New(cfg Config, reviewer Reviewer, log *slog.Logger, reg prometheus.Registerer) (*Guard, error) {
	g := &Guard{cfg: cfg, log: log, limits: newLimits(), refused: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ipwitness_requests_refused_total",
		Help: "Requests and report streams that were refused: unauthenticated, forbidden, or too many.",
	}, []string{"reason"})}
	g.hostname, _ = os.Hostname() // without one it has no name of its own
	for _, reason := range []string{unauthenticated, forbidden, tooMany} {
		g.refused.WithLabelValues(reason)
	}
	switch cfg.Anonymous {
	case "", AnonymousAuto:
		g.cfg.Anonymous = AnonymousRead
		if cfg.known() {
			g.cfg.Anonymous = AnonymousNone
		}
	case AnonymousNone:
		if !cfg.known() {
			return nil, errors.New("--anonymous none leaves nobody who may do anything: say how callers are known, by --tokens, --token-review or --tls-client-ca")
		}
	case AnonymousRead:
	default:
		return nil, fmt.Errorf("%q is nothing that --anonymous can be: use none or read", cfg.Anonymous)
	}
	if cfg.Required && !cfg.known() {
		return nil, errors.New("--require-auth: no authentication is configured, so that anybody could report and read: add --tokens, --token-review or --tls-client-ca")
	}
	var err error
	if cfg.Tokens != "" {
		if g.tokens, err = openTokens(cfg.Tokens, log); err != nil {
			return nil, err
		}
	}
	if cfg.TokenReview {
		if reviewer == nil {
			return nil, errors.New("--token-review needs the Kubernetes API, and there is none here: run in a pod with a service account, or name a file with --kubeconfig")
		}
		if g.cfg.Audience == "" {
			g.cfg.Audience = DefaultAudience
		}
		g.reviews = newReviews(reviewer)
	} else if len(cfg.AgentAccounts) > 0 {
		return nil, errors.New("--agent-account is for tokens of Kubernetes: add --token-review")
	}
	for _, account := range cfg.AgentAccounts {
		namespace, name, ok := strings.Cut(account, "/")
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("%q is no service account: write it NAMESPACE/NAME, like ipwitness/ipwitness-agent", account)
		}
		g.accounts = append(g.accounts, "system:serviceaccount:"+namespace+":"+name)
	}
	return g, reg.Register(g.refused)
}

// Open tells that nothing says who callers are.
func (g *Guard) Open() bool { return !g.cfg.known() }

// authenticate says who shows a credential. reports tells that it comes to report:
// its token must be meant for us.
func (g *Guard) authenticate(ctx context.Context, by credential, reports bool) (*Caller, error) {
	if by.certificate != nil && g.cfg.Certificates != nil { // a connection outlives certificates, and those who sign them
		if err := g.cfg.Certificates(by.chain); err != nil {
			return nil, status.Errorf(codes.Unauthenticated, "the client certificate is not good any more: %s", err)
		}
	}
	c, err := g.identify(ctx, by, reports)
	if err != nil {
		return nil, err
	}
	c.from = by
	return c, nil
}

func (g *Guard) identify(ctx context.Context, by credential, reports bool) (*Caller, error) {
	if by.token == "" || !g.cfg.known() {
		if by.certificate != nil {
			return certified(by.certificate)
		}
		return &Caller{agent: g.Open(), operator: g.Open() && by.remote.IsLoopback()}, nil
	}
	if c := g.tokens.find(by.token); c != nil {
		return c, nil
	}
	if g.reviews == nil {
		return nil, status.Error(codes.Unauthenticated, "the token is not known here: it must be in the file of the aggregator's --tokens")
	}
	audiences := []string{g.cfg.Audience}
	if !reports {
		audiences = append(audiences, "") // what people and Prometheus show the API server
	}
	// Each new token is a question to the API server: nobody is to ask many by us.
	who, err := g.reviews.token(ctx, by.token, audiences,
		func() error { return g.limits.try(by.remote) }, func() { g.limits.failed(by.remote) })
	switch {
	case errors.Is(err, ErrRefused):
		return nil, status.Errorf(codes.Unauthenticated,
			"Kubernetes does not accept the token (%s): it must be current and of audience %s, as 'kubectl create token' gives it", err, g.cfg.Audience)
	case status.Code(err) == codes.ResourceExhausted:
		return nil, err
	case err != nil:
		return nil, status.Errorf(codes.Unavailable, "the Kubernetes API cannot be asked whose token it is: %s: try again", err)
	}
	c := &Caller{name: who.Name, subject: &who}
	if slices.Contains(g.accounts, who.Name) {
		if c.node = first(who.Extra[nodeName]); c.node == "" && reports {
			return nil, status.Errorf(codes.PermissionDenied,
				"the token of %s is of no node: it must be of a pod (a projected volume), and Kubernetes 1.30 or newer", who.Name)
		}
		c.agent = true
	}
	return c, nil
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// certified is whom a certificate is of.
func certified(cert *x509.Certificate) (*Caller, error) {
	is := func(group string) bool { return slices.Contains(cert.Subject.Organization, group) }
	c := &Caller{name: cert.Subject.CommonName, agent: is(AgentsGroup), operator: is(OperatorsGroup)}
	c.reader = c.operator || is(ReadersGroup)
	if c.name == "" {
		c.name = first(cert.DNSNames)
	}
	if c.name == "" { // an agent of no node would be one of all
		return nil, status.Error(codes.Unauthenticated, "the client certificate names nobody: it must have a common name (CN) or a DNS name")
	}
	c.node = c.name
	return c, nil
}

// misled tells whether a caller on this host asks for a name that is not this host's: it
// may be a page of another site that has its browser think that we are of that site
// (DNS rebinding).
func (g *Guard) misled(by credential) bool {
	host := by.host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if !by.remote.IsLoopback() || host == "" || host == "localhost" || strings.EqualFold(host, g.hostname) {
		return false
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err != nil
}

// Reports says whether a caller may report for a node.
func (c *Caller) Reports(node string) error {
	if c == nil || c.agent && c.node == "" {
		return nil // in process, or there is no access control
	}
	if c.agent && c.node == node {
		return nil
	}
	if c.agent && c.from.token == "" && c.from.certificate != nil && slices.Contains(c.from.certificate.DNSNames, node) {
		return nil
	}
	if !c.agent {
		return status.Errorf(codes.PermissionDenied, "%s may not report: it is no agent", c.name)
	}
	return status.Errorf(codes.PermissionDenied, "an agent may report for its own node only: %s is of node %s, and it says that it is %s (see --node)",
		c.name, c.node, node)
}

// Vouched is the node that the caller is known to be of; empty where nothing says so.
func (c *Caller) Vouched(node string) string {
	if c == nil || c.node == "" {
		return ""
	}
	return node
}

// Name is who the caller is; empty for nobody.
func (c *Caller) Name() string {
	if c == nil {
		return ""
	}
	return c.name
}

// Account returns the name that the caller's connections are counted under. For an agent this
// is its node, because agents may share a name. It is empty if callers are not authenticated.
func (c *Caller) Account() string {
	if c.agent && c.node != "" {
		return "node " + c.node
	}
	return c.name
}

// authorize says whether a caller may do something.
func (g *Guard) authorize(ctx context.Context, c *Caller, what Action) error {
	switch {
	case what.open:
		return nil
	case c.name == "" && g.cfg.Anonymous == AnonymousRead && g.misled(c.from):
		return status.Errorf(codes.PermissionDenied,
			"%q is no name by which this host asks itself: ask 127.0.0.1, [::1], localhost or its hostname (a page of another site can have a browser ask for a name)", c.from.host)
	case !what.changes() && !what.report && g.cfg.Anonymous == AnonymousRead:
		return nil
	case what.report:
		return g.mayReport(c)
	case c.subject != nil:
		ok, err := g.reviews.access(ctx, *c.subject, what)
		switch {
		case err != nil:
			return status.Errorf(codes.Unavailable, "the Kubernetes API cannot be asked whether %s may %s: %s: try again", c.name, what, err)
		case !ok:
			return status.Errorf(codes.PermissionDenied, "%s may not %s: it needs a ClusterRole like ipwitness-reader, or ipwitness-operator to acknowledge", c.name, what)
		}
		return nil
	case what.changes() && c.operator, !what.changes() && (c.reader || c.operator):
		return nil
	case c.name == "" && what.changes() && g.Open():
		return status.Errorf(codes.PermissionDenied,
			"from elsewhere than this host nobody may %s, as nothing says who callers are: do it on the aggregator's host at its loopback address, or set --tokens, --token-review or --tls-client-ca", what)
	case c.name == "":
		return status.Errorf(codes.Unauthenticated, "who may %s must say who it is: show a bearer token (--token-file) or a client certificate (--tls-cert)", what)
	}
	return status.Errorf(codes.PermissionDenied, "%s may not %s", c.name, what)
}

func (g *Guard) mayReport(c *Caller) error {
	switch {
	case g.cfg.Certificates != nil && c.from.certificate == nil:
		return status.Error(codes.Unauthenticated,
			"an agent must show a client certificate that is signed by the CA of the aggregator's --tls-client-ca (--tls-cert)")
	case c.agent:
		return nil
	case c.from.certificate != nil && c.from.token == "":
		return status.Errorf(codes.PermissionDenied,
			"%s may not report by its certificate alone: that must be of organization %s, with the node as its name; or show a token, too (--token-file)", c.name, AgentsGroup)
	case c.name == "":
		return status.Error(codes.Unauthenticated, "an agent must say who it is: by a token (--token-file), or by a client certificate (--tls-cert)")
	}
	return status.Errorf(codes.PermissionDenied, "%s may not report: it is no agent (--agent-account, --tokens)", c.name)
}

// Reasons for which callers are refused.
const (
	unauthenticated = "unauthenticated"
	forbidden       = "forbidden"
	tooMany         = "too_many"
)

// refuse counts a refusal and gives it back.
func (g *Guard) refuse(ctx context.Context, err error, by credential, what string) error {
	reason := map[codes.Code]string{
		codes.Unauthenticated: unauthenticated, codes.PermissionDenied: forbidden, codes.ResourceExhausted: tooMany,
	}[status.Code(err)]
	if reason == "" {
		return err
	}
	g.refused.WithLabelValues(reason).Inc()
	g.log.Log(ctx, g.level(), "refused a request", "from", by.remote, "asked_for", what, "reason", status.Convert(err).Message())
	return err
}

// HungUp counts a connection that was closed because its client exceeded a limit on it.
func (g *Guard) HungUp(from net.Addr, err error) {
	g.refused.WithLabelValues(tooMany).Inc()
	g.log.Log(context.Background(), g.level(), "hung up on a client", "from", from, "reason", err)
}

// level returns the log level for the next line about a refusal.
func (g *Guard) level() slog.Level {
	if g.limits.mayLog() {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}
