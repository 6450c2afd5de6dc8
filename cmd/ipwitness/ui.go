package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/secure"
)

func newUI(sys system) *cobra.Command {
	q := &query{sys: sys}
	var port uint16
	cmd := &cobra.Command{
		Use:   "ui [flags]",
		Short: "Serve the web page of an aggregator to a browser on this host",
		Args:  cli.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return q.serveUI(cmd.Context(), port) },
	}
	q.addServerFlags(cmd)
	cmd.Flags().Uint16Var(&port, "port", 0, "`PORT` of the loopback address to serve the page at (default: any free port)")
	return cmd
}

// serveUI serves the page until ctx ends.
func (q *query) serveUI(ctx context.Context, port uint16) error {
	c := q.client()
	// Errors of the connection are better shown here than in the browser.
	if _, err := q.nodes(ctx); err != nil {
		return err
	}
	target, err := url.Parse(c.base)
	if err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port).String())
	if err != nil {
		return fmt.Errorf("serve the web page: %w", err)
	}
	key := strings.ToLower(rand.Text())
	server := cli.NewHTTPServer(newUIProxy(target, c.http.Transport, key, l.Addr().String()), nil, slog.New(slog.DiscardHandler))
	if _, err := fmt.Fprintf(q.sys.stdout, "http://%s/%s/\n", l.Addr(), key); err != nil {
		return errors.Join(err, l.Close())
	}
	q.note("Open this address in a browser on this host. Press Ctrl-C to stop.")
	return cli.RunHTTP(ctx, server, l)
}

// newUIProxy returns a handler that passes requests for the paths below /KEY/ on to the server, with the
// user's credentials. It refuses requests without the key, and those with another host name, which may
// come from a page of another site by DNS rebinding.
func newUIProxy(target *url.URL, by http.RoundTripper, key, host string) http.Handler {
	proxy := &httputil.ReverseProxy{
		Transport:     by,
		FlushInterval: -1, // a watch sends single lines
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Cookie")
			r.Out.Header.Del("Origin") // it is not the server's, and this proxy has checked it
			r.Out.Header.Del("Referer")
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			message := err.Error()
			if problem, ok := errors.AsType[secure.Problem](err); ok {
				message = problem.Error()
			}
			if r.Context().Err() == nil {
				w.Header().Set("Content-Type", "text/plain; charset=utf-8")
				w.WriteHeader(http.StatusBadGateway)
				_, _ = io.WriteString(w, "cannot reach the aggregator: "+message+"\n")
			}
		},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	foreign := http.NewCrossOriginProtection()
	below := http.StripPrefix("/"+key, foreign.Handler(proxy))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if named := r.Host == host || r.Host == strings.TrimSuffix(host, ":80"); !named || !strings.HasPrefix(r.URL.Path, "/"+key+"/") {
			http.Error(w, "not found: use the address that 'ipwitness ui' has printed", http.StatusNotFound)
			return
		}
		below.ServeHTTP(w, r)
	})
}
