package tests
import ("testing";"github.com/ipwitness/ipwitness/tests/prometheus")
func wantPanels(t *testing.T, s *prometheus.Server) {}
