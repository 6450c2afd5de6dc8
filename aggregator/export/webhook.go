package export

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/apijson"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/secure"
)

const (
	typePrefix = "io.github.ipwitness."
	// secretPrefix is the prefix of secrets, as in Standard Webhooks.
	secretPrefix = "whsec_"
	// leastSecret is the smallest number of bytes of a secret.
	leastSecret = 24
)

// A webhook gets conflicts that were confirmed, and findings. Each is a CloudEvent 1.0 in a request of
// its own (structured content mode), which is signed as Standard Webhooks describe it
// (https://www.standardwebhooks.com).
type webhook struct {
	*client
	source, secrets string
	clock           func() time.Time
}

func newWebhook(cfg *Config, files secure.Files) (*receiver, error) {
	if cfg.WebhookSecret == "" {
		return nil, errors.New("--webhook needs a secret, with which each request is signed: " +
			`write one with (umask 077; echo "whsec_$(openssl rand -base64 32)" >FILE), and set --webhook-secret-file FILE`)
	}
	c, err := newClient(cfg.Webhook, "", files, cfg.Log, help{url: "webhook", credentials: "the secret of --webhook-secret-file, which the receiver must know"})
	if err != nil {
		return nil, err
	}
	w := &webhook{client: c, source: "/ipwitness/" + url.PathEscape(cfg.Cluster), secrets: cfg.WebhookSecret, clock: cfg.Clock}
	_, err = readSecrets(w.secrets)
	return &receiver{
		client: c, kinds: []pb.Event_Kind{pb.Event_CONFLICT, pb.Event_FINDING}, atOnce: 1, deliver: w.deliver,
		// Most conflicts that are never confirmed are pods that exchange an address.
		wants: func(t *transition) bool { return t.GetFinding() != nil || t.confirmed },
	}, err
}

type cloudEvent struct {
	SpecVersion string          `json:"specversion"`
	ID          string          `json:"id"`
	Source      string          `json:"source"`
	Type        string          `json:"type"`
	Subject     string          `json:"subject,omitempty"`
	Time        string          `json:"time"`
	ContentType string          `json:"datacontenttype"`
	Data        json.RawMessage `json:"data"`
}

func (w *webhook) deliver(ctx context.Context, some []transition) error {
	for i := range some {
		t := &some[i]
		data, err := apijson.Append(nil, t.Event)
		if err != nil {
			return err
		}
		body, err := json.Marshal(cloudEvent{
			SpecVersion: "1.0", ID: t.id, Source: w.source, Type: typePrefix + t.name, Subject: address(t.Event),
			Time: t.at.UTC().Format(time.RFC3339Nano), ContentType: "application/json", Data: data,
		})
		if err != nil {
			return err
		}
		header, err := w.header(t.id, body)
		if err != nil {
			return err
		}
		if _, err := w.post(ctx, header, body); err != nil {
			return err
		}
	}
	return nil
}

// header returns the header of a request, with the signature. The secrets are read each time.
func (w *webhook) header(id string, body []byte) (http.Header, error) {
	secrets, err := readSecrets(w.secrets)
	if err != nil {
		return nil, err
	}
	at := strconv.FormatInt(w.clock().Unix(), 10)
	var signatures []string
	for _, secret := range secrets {
		signatures = append(signatures, signature(secret, id, at, body))
	}
	h := http.Header{"Content-Type": {"application/cloudevents+json; charset=utf-8"}}
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", at)
	h.Set("Webhook-Signature", strings.Join(signatures, " "))
	return h, nil
}

// signature returns the signature of a request (Standard Webhooks, version 1).
func signature(secret []byte, id, at string, body []byte) string {
	sum := hmac.New(sha256.New, secret)
	_, _ = fmt.Fprintf(sum, "%s.%s.", id, at) // a hash.Hash never fails
	_, _ = sum.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(sum.Sum(nil))
}

// readSecrets returns the secrets in a file, one a line. A request is signed with all of them, so that
// a receiver can change over from one to another.
func readSecrets(name string) (secrets [][]byte, err error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the secret of the webhook: %w", err)
	}
	for line := range strings.Lines(string(raw)) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		secret, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(line, secretPrefix))
		if err != nil || len(secret) < leastSecret {
			return nil, fmt.Errorf("%s must have lines of %s and at least %d bytes in base64, as echo \"%s$(openssl rand -base64 32)\" writes it",
				name, secretPrefix, leastSecret, secretPrefix)
		}
		secrets = append(secrets, secret)
	}
	if len(secrets) == 0 {
		return nil, fmt.Errorf("%s is empty: it must have a secret", name)
	}
	return secrets, nil
}

func address(e *pb.Event) string {
	switch {
	case e.GetOwner() != nil:
		return e.GetOwner().GetAddress()
	case e.GetConflict() != nil:
		return e.GetConflict().GetAddress()
	}
	return e.GetFinding().GetAddress()
}
