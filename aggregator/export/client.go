package export

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/secure"
)

// A client sends requests to one URL. Nothing but the host of the URL is ever shown, because the rest
// may be secret.
type client struct {
	url, host string
	http      *http.Client
	// tls has the TLS configuration, whose files may change, and config is the one of the transport.
	tls    *secure.Follower
	config *tls.Config
	// help says what to correct if the receiver refuses a request.
	help help
}

// help names the settings that may be wrong.
type help struct {
	// url is the flag of the URL, and credentials says where the credentials are.
	url, credentials string
}

func newClient(base, path string, files secure.Files, log *slog.Logger, help help) (*client, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", help.url, err)
	}
	if path != "" && !strings.HasSuffix(u.Path, path) {
		u.Path = strings.TrimSuffix(u.Path, "/") + path
	}
	c := &client{url: u.String(), host: u.Host, help: help, http: &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	c.tls = secure.Follow(files, log, func() (*tls.Config, error) { return tlsConfig(files) })
	return c, c.load()
}

// load makes the transport if the TLS files have changed.
func (c *client) load() error {
	config, err := c.tls.Config()
	if err != nil || config == c.config {
		return err
	}
	c.config = config
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = config
	transport.MaxIdleConnsPerHost = 1
	if c.http.Transport != nil {
		c.http.CloseIdleConnections()
	}
	c.http.Transport = transport
	return nil
}

// tlsConfig returns the TLS configuration for receivers, which may be older than ipwitness.
func tlsConfig(files secure.Files) (config *tls.Config, err error) {
	config = &tls.Config{MinVersion: tls.VersionTLS12}
	if files.CA != "" {
		if config.RootCAs, err = secure.ReadCAs("the CA bundle of receivers", files.CA); err != nil {
			return nil, err
		}
	}
	if files.Cert != "" || files.Key != "" {
		pair, err := files.Pair()
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// mostAnswer is the number of bytes of an answer that are read, and mostShown is how many are shown.
const (
	mostAnswer = 64 << 10
	mostShown  = 200
)

func (c *client) post(ctx context.Context, header http.Header, body []byte) ([]byte, error) {
	if err := c.load(); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the URL cannot be used")
	}
	if header != nil {
		req.Header = header
	}
	req.Header.Set("User-Agent", "ipwitness")
	resp, err := c.http.Do(req)
	if err != nil {
		if of, ok := errors.AsType[*url.Error](err); ok {
			err = of.Err
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return nil, fmt.Errorf("no answer within %s", patience)
		}
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // only read
	answer, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	if resp.StatusCode/100 == 2 {
		return answer, err
	}
	return nil, &answerError{status: resp.StatusCode, text: shown(answer), retryAfter: retryAfter(resp), help: c.help}
}

func shown(answer []byte) string {
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, string(answer[:min(len(answer), mostShown)]))
	return strings.Join(strings.Fields(text), " ")
}

// retryAfter returns the pause that a receiver asks for; 0 if it does not.
func retryAfter(resp *http.Response) time.Duration {
	text := resp.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}

// An answerError is the answer of a receiver that did not accept everything.
type answerError struct {
	status     int
	text       string
	retryAfter time.Duration
	help       help
	// accepted is set if the rest was accepted, and refused is the number of transitions that were not.
	accepted bool
	refused  int
}

func (e *answerError) Error() string {
	if e.accepted {
		return e.text
	}
	text := fmt.Sprintf("the answer is %d %s", e.status, http.StatusText(e.status))
	if e.text != "" {
		text += fmt.Sprintf(" (%s)", e.text)
	}
	return text
}

// content reports whether the receiver does not accept the content of the request.
func (e *answerError) content() bool {
	switch e.status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// remedy says what to correct; empty if the receiver may accept the same request later.
func (e *answerError) remedy() string {
	switch {
	case e.status == http.StatusUnauthorized, e.status == http.StatusForbidden, e.status == http.StatusProxyAuthRequired:
		return "the receiver does not accept the credentials: correct " + e.help.credentials
	case e.status == http.StatusRequestTimeout, e.status == http.StatusTooEarly, e.status == http.StatusTooManyRequests, e.content():
		return ""
	case e.status/100 == 3:
		return "the receiver redirects to another URL, which is not followed: set --" + e.help.url + " to that URL"
	case e.status/100 == 4:
		return "this is not the URL of such a receiver: correct --" + e.help.url
	}
	return ""
}

func readSecret(name string) (string, error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(raw)), "\n")
	if line = strings.TrimSpace(line); line == "" {
		return "", fmt.Errorf("%s is empty", name)
	}
	return line, nil
}
