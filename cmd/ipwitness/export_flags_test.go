package main

import (
	"reflect"
	"testing"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/aggregator/export"
)

func TestFlagsOfReceiversAreTheirSettings(t *testing.T) {
	var got export.Settings
	cmd := &cobra.Command{}
	exportFlags(cmd, &got)
	err := cmd.ParseFlags([]string{
		"--otlp-endpoint", "http://otlp:4318", "--alertmanager", "http://a:9093", "--alertmanager", "http://b:9093",
		"--alertmanager-token-file", "token", "--webhook", "https://hook", "--webhook-secret-file", "secret", "--export-ca", "ca.crt",
	})
	want := export.Settings{
		OTLP: "http://otlp:4318", Alertmanagers: []string{"http://a:9093", "http://b:9093"},
		AlertmanagerToken: "token", Webhook: "https://hook", WebhookSecret: "secret", CA: "ca.crt",
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v (%v), want %+v", got, err, want)
	}
}

func TestURLsOfReceiversAreChecked(t *testing.T) {
	for _, flag := range []string{"--otlp-endpoint", "--webhook", "--alertmanager"} {
		for _, value := range []string{"receiver:80", "/v1/logs", "ftp://192.0.2.1"} {
			var cfg export.Settings
			cmd := &cobra.Command{}
			exportFlags(cmd, &cfg)
			if err := cmd.ParseFlags([]string{flag, value}); err == nil {
				t.Errorf("%s %q: got no error", flag, value)
			}
		}
	}
}
