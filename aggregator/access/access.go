// Package access authenticates callers of the aggregator and decides what they may do. An
// agent may report for its own node, readers may read, and only operators may acknowledge.
//
// A caller authenticates with a bearer token (from a file or from Kubernetes) or a client
// certificate. All calls, both gRPC and REST, are checked against one table of actions
// (actions.go). Methods that are not in the table are refused. This package knows nothing
// about addresses. It never logs a secret, and keeps a secret no longer than its caller.
package access

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Values of Config.Anonymous.
const (
	// AnonymousAuto lets unauthenticated callers read, unless the Config has a way to
	// authenticate callers.
	AnonymousAuto = "auto"
	// AnonymousNone refuses unauthenticated callers.
	AnonymousNone = "none"
	// AnonymousRead lets unauthenticated callers read.
	AnonymousRead = "read"
)

// DefaultAudience is the default audience of Kubernetes tokens.
const DefaultAudience = "ipwitness"

// Organizations (O) in the subject of a client certificate that grant rights.
const (
	AgentsGroup    = "ipwitness:agents"
	ReadersGroup   = "ipwitness:readers"
	OperatorsGroup = "ipwitness:operators"
)

// Config is the configuration of a Guard. Without any way to authenticate callers there is no
// access control: all callers may report and read, and callers on this host may acknowledge.
type Config struct {
	// Tokens is the path of a file of bearer tokens, one per line: TOKEN ROLE NAME.
	Tokens string
	// Certificates verifies the chain of a client certificate against the current CAs. It is
	// nil if client certificates are not used. If it is set, agents must present a
	// certificate.
	Certificates func(chain []*x509.Certificate) error
	// TokenReview enables token reviews by Kubernetes.
	TokenReview bool
	// Audience is the audience that Kubernetes tokens must have.
	Audience string
	// AgentAccounts are the service accounts of agents, as NAMESPACE/NAME.
	AgentAccounts []string
	// Anonymous is AnonymousAuto, AnonymousNone or AnonymousRead; empty for auto.
	Anonymous string
	// Required makes New reject a Config that provides no way to authenticate callers.
	Required bool
}

// known reports whether there is any way to authenticate callers.
func (c Config) known() bool { return c.Tokens != "" || c.Certificates != nil || c.TokenReview }

// Subject is the user that a Kubernetes token belongs to.
type Subject struct {
	Name, UID string
	Groups    []string
	Extra     map[string][]string
}

// nodeName is the key of the node of a token's pod. Kubernetes sets it since version 1.30.
const nodeName = "authentication.kubernetes.io/node-name"

// Reviewer reviews tokens and rights. The Kubernetes API implements it.
type Reviewer interface {
	// ReviewToken returns the subject of a token for an audience. An empty audience is the API
	// server's own. The error wraps ErrRefused if the token is not valid.
	ReviewToken(ctx context.Context, token, audience string) (Subject, error)
	// ReviewAccess reports whether a subject may do something.
	ReviewAccess(ctx context.Context, who Subject, what Action) (bool, error)
}

// ErrRefused means that Kubernetes reviewed a token and rejected it.
var ErrRefused = errors.New("not accepted")

// Caller is the caller of a method and its rights.
type Caller struct {
	// name is empty for unauthenticated callers.
	name string
	// agent means that the caller may report for the given node, or for any node if that is
	// empty.
	agent bool
	node  string
	// reader and operator are the caller's other rights. If subject is set, Kubernetes decides
	// instead.
	reader, operator bool
	subject          *Subject
	// from is the credential that is checked again during a stream.
	from credential
	// revoked is closed when the credential is no longer valid.
	revoked chan struct{}
	// questions limits the calls for which agents are asked. It is set when a call begins.
	questions *rate.Limiter
}

// credential is what a caller presents to authenticate, and where the call came from.
type credential struct {
	token       string
	certificate *x509.Certificate // verified when the connection was established
	chain       []*x509.Certificate
	remote      netip.Addr
	// host is the server's name according to the client (the Host header).
	host string
}

// Guard authenticates callers and checks their rights. Use New.
type Guard struct {
	cfg      Config
	log      *slog.Logger
	tokens   *tokens
	reviews  *reviews
	accounts []string // service accounts of agents, as Kubernetes user names
	limits   *limits
	hostname string
	refused  *prometheus.CounterVec
}

// New returns a guard. It needs reviewer only for token reviews.
func New(cfg Config, reviewer Reviewer, log *slog.Logger, reg prometheus.Registerer) (*Guard, error) {
	g := &Guard{cfg: cfg, log: log, limits: newLimits(), refused: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ipwitness_requests_refused_total",
		Help: "Requests and report streams that were refused: unauthenticated, forbidden, or too many.",
	}, []string{"reason"})}
	g.hostname, _ = os.Hostname() // empty if unknown
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
			return nil, errors.New("--anonymous none would refuse all callers: configure authentication with --tokens, --token-review or --tls-client-ca")
		}
	}
	if cfg.Required && !cfg.known() {
		return nil, errors.New("--require-auth: no authentication is configured, so anyone could report and read: add --tokens, --token-review or --tls-client-ca")
	}
	var err error
	if cfg.Tokens != "" {
		if g.tokens, err = openTokens(cfg.Tokens, log); err != nil {
			return nil, err
		}
	}
	if cfg.TokenReview {
		if reviewer == nil {
			return nil, errors.New("--token-review needs the Kubernetes API, which is not configured: run in a pod with a service account, or set --kubeconfig")
		}
		if g.cfg.Audience == "" {
			g.cfg.Audience = DefaultAudience
		}
		g.reviews = &reviews{ask: reviewer, slots: make(chan struct{}, atOnce), now: time.Now, answers: map[[sha256.Size]byte]answer{}}
	} else if len(cfg.AgentAccounts) > 0 {
		return nil, errors.New("--agent-account applies only to Kubernetes tokens: add --token-review")
	}
	for _, account := range cfg.AgentAccounts {
		namespace, name, ok := strings.Cut(account, "/")
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("%q is not a service account: write it as NAMESPACE/NAME, like ipwitness/ipwitness-agent", account)
		}
		g.accounts = append(g.accounts, "system:serviceaccount:"+namespace+":"+name)
	}
	return g, reg.Register(g.refused)
}

// Open reports whether there is no way to authenticate callers.
func (g *Guard) Open() bool { return !g.cfg.known() }

// authenticate returns the caller that presents a credential. reports means that it wants to
// report: then its token must have our audience.
func (g *Guard) authenticate(ctx context.Context, by credential, reports bool) (*Caller, error) {
	if by.certificate != nil && g.cfg.Certificates != nil { // check again: the certificate may have expired, or its CA been removed
		if err := g.cfg.Certificates(by.chain); err != nil {
			return nil, status.Errorf(codes.Unauthenticated, "the client certificate is no longer valid: %s", err)
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
		return nil, status.Error(codes.Unauthenticated, "the token is unknown: it must be in the aggregator's --tokens file")
	}
	audiences := []string{g.cfg.Audience}
	if !reports {
		audiences = append(audiences, "") // users and Prometheus present tokens for the API server
	}
	// Each new token causes a request to the API server, so limit those of an address that were rejected.
	calls := func() *rate.Limiter { return g.limits.of(by.remote.String()).calls }
	who, err := g.reviews.token(ctx, by.token, audiences, func() error {
		if calls().Tokens() < wrongToken {
			return status.Errorf(codes.ResourceExhausted, "too many invalid tokens from %s: wait a few seconds", by.remote)
		}
		return nil
	}, func() { calls().AllowN(time.Now(), wrongToken) })
	switch {
	case errors.Is(err, ErrRefused):
		return nil, status.Errorf(codes.Unauthenticated,
			"Kubernetes does not accept the token (%s): it must be unexpired and have the audience %s, like a token of 'kubectl create token'", err, g.cfg.Audience)
	case status.Code(err) == codes.ResourceExhausted:
		return nil, err
	case err != nil:
		return nil, status.Errorf(codes.Unavailable, "the Kubernetes API cannot review the token: %s: try again", err)
	}
	c := &Caller{name: who.Name, subject: &who}
	if slices.Contains(g.accounts, who.Name) {
		if names := who.Extra[nodeName]; len(names) > 0 {
			c.node = names[0]
		}
		if c.node == "" && reports {
			return nil, status.Errorf(codes.PermissionDenied,
				"the token of %s is not bound to a node: use a projected token of a pod, and Kubernetes 1.30 or newer", who.Name)
		}
		c.agent = true
	}
	return c, nil
}

// certified returns the caller that a certificate identifies.
func certified(cert *x509.Certificate) (*Caller, error) {
	is := func(group string) bool { return slices.Contains(cert.Subject.Organization, group) }
	c := &Caller{name: cert.Subject.CommonName, agent: is(AgentsGroup), operator: is(OperatorsGroup)}
	c.reader = c.operator || is(ReadersGroup)
	if c.name == "" && len(cert.DNSNames) > 0 {
		c.name = cert.DNSNames[0]
	}
	if c.name == "" { // an agent without a name could report for all nodes
		return nil, status.Error(codes.Unauthenticated, "the client certificate has no name: it must have a common name (CN) or a DNS name")
	}
	c.node = c.name
	return c, nil
}

// rebound reports whether a caller on this host uses a host name that is not this host's. Such
// a request may come from a page of another site that uses DNS rebinding in the user's
// browser.
func (g *Guard) rebound(by credential) bool {
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

// Reports returns an error unless the caller may report for the node.
func (c *Caller) Reports(node string) error {
	if c == nil || c.agent && c.node == "" {
		return nil // a call within this process, or no access control
	}
	if c.agent && c.node == node {
		return nil
	}
	if c.agent && c.from.token == "" && c.from.certificate != nil && slices.Contains(c.from.certificate.DNSNames, node) {
		return nil
	}
	if !c.agent {
		return status.Errorf(codes.PermissionDenied, "%s may not report: it is not an agent", c.name)
	}
	return status.Errorf(codes.PermissionDenied, "an agent may report only for its own node: %s belongs to node %s, but reports as node %s (see --node)",
		c.name, c.node, node)
}

// Vouched returns the node if the caller's credential proves that it belongs to that node, and
// the empty string otherwise.
func (c *Caller) Vouched(node string) string {
	if c == nil || c.node == "" {
		return ""
	}
	return node
}

// Name returns the name of the caller. It is empty for unauthenticated callers.
func (c *Caller) Name() string {
	if c == nil {
		return ""
	}
	return c.name
}

// authorize returns an error unless the caller may perform the action.
func (g *Guard) authorize(ctx context.Context, c *Caller, what Action) error {
	switch {
	case what.open:
		return nil
	case c.name == "" && g.cfg.Anonymous == AnonymousRead && g.rebound(c.from):
		return status.Errorf(codes.PermissionDenied,
			"%q is not a name of this host: use 127.0.0.1, [::1], localhost or its hostname (other names are refused because of DNS rebinding)", c.from.host)
	case !what.operates() && !what.report && g.cfg.Anonymous == AnonymousRead:
		return nil
	case what.report && g.cfg.Certificates != nil && c.from.certificate == nil:
		return status.Error(codes.Unauthenticated,
			"an agent must present a client certificate that is signed by the CA of the aggregator's --tls-client-ca (--tls-cert)")
	case what.report && c.agent:
		return nil
	case what.report && c.from.certificate != nil && c.from.token == "":
		return status.Errorf(codes.PermissionDenied,
			"%s may not report with its certificate alone: the certificate must have organization %s and the name of the node, or the agent must also present a token (--token-file)", c.name, AgentsGroup)
	case what.report && c.name == "":
		return status.Error(codes.Unauthenticated, "an agent must authenticate with a token (--token-file) or a client certificate (--tls-cert)")
	case what.report:
		return status.Errorf(codes.PermissionDenied, "%s may not report: it is not an agent (--agent-account, --tokens)", c.name)
	case c.subject != nil:
		ok, err := g.reviews.access(ctx, *c.subject, what)
		switch {
		case err != nil:
			return status.Errorf(codes.Unavailable, "the Kubernetes API cannot check whether %s may %s: %s: try again", c.name, what, err)
		case !ok:
			return status.Errorf(codes.PermissionDenied, "%s may not %s: it needs a ClusterRole like ipwitness-reader, or ipwitness-operator to acknowledge and to back up", c.name, what)
		}
		return nil
	case what.operates() && c.operator, !what.operates() && (c.reader || c.operator):
		return nil
	case c.name == "" && what.operates() && g.Open():
		return status.Errorf(codes.PermissionDenied,
			"no authentication is configured, so only this host may %s: use the loopback address on the aggregator's host, or set --tokens, --token-review or --tls-client-ca", what)
	case c.name == "":
		return status.Errorf(codes.Unauthenticated, "authentication is required to %s: present a bearer token (--token-file) or a client certificate (--tls-cert)", what)
	}
	return status.Errorf(codes.PermissionDenied, "%s may not %s", c.name, what)
}

// Reasons for refusals, as in the metric.
const (
	unauthenticated = "unauthenticated"
	forbidden       = "forbidden"
	tooMany         = "too_many"
)

func (g *Guard) refuse(ctx context.Context, err error, by credential, what string) error {
	reason := map[codes.Code]string{
		codes.Unauthenticated: unauthenticated, codes.PermissionDenied: forbidden, codes.ResourceExhausted: tooMany,
	}[status.Code(err)]
	if reason == "" {
		return err
	}
	g.refused.WithLabelValues(reason).Inc()
	level := slog.LevelDebug
	if g.limits.log.Allow() {
		level = slog.LevelWarn
	}
	g.log.Log(ctx, level, "refused a request", "from", by.remote, "asked_for", what, "reason", status.Convert(err).Message())
	return err
}
