package explain_test

import (
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/explain"
)

// TestAlertTexts compares the texts of alerts and log records with a file.
func TestAlertTexts(t *testing.T) {
	var b strings.Builder
	for _, a := range []explain.AlertText{
		explain.ConflictAlert("10.244.0.2", "split-brain", "6frtk3pjavxaruax", "Two pods hold 10.244.0.2.", true),
		explain.ConflictAlert("10.244.0.2", "unknown", "6frtk3pjavxaruax", "Two pods seem to hold 10.244.0.2.", false),
		explain.FindingAlert("leaked", "6frtk3pjavxaruax", "10.244.0.2 is allocated, but has no owner."),
	} {
		b.WriteString("summary: " + a.Summary + "\ndescription: " + a.Description + "\nrunbook: " + a.Runbook + "\n\n")
	}
	for _, line := range []string{
		explain.OwnerChanged("added", "10.244.0.2", "shop", "web", "node1"),
		explain.OwnerChanged("removed", "10.244.0.2", "shop", "web", "node1"),
		explain.OwnerChanged("changed", "10.244.0.2", "", "lab", "node1"),
		explain.OwnerChanged("added", "10.244.0.2", "", "", ""),
		explain.Text("node/connected", "node", "node1"), explain.Text("node/disconnected", "node", "node1"),
	} {
		b.WriteString(line + "\n")
	}
	compare(t, "alerts.txt", []byte(b.String()))
}
