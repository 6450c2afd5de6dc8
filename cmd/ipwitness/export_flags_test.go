package main

import (
	"reflect"
	"strings"
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

func TestEmptyURLsOfReceiversAreRefused(t *testing.T) {
	for _, flag := range []string{"--otlp-endpoint", "--webhook"} {
		var cfg export.Settings
		cmd := &cobra.Command{}
		exportFlags(cmd, &cfg)
		if err := cmd.ParseFlags([]string{flag, ""}); err == nil || !strings.Contains(err.Error(), "it is empty") {
			t.Errorf("%s: got %v, want that it is empty", flag, err)
		}
	}
}
