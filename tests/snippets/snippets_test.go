package snippets

import (
	"slices"
	"testing"
)

func TestCommandsAreFound(t *testing.T) {
	tests := map[string]struct {
		block Block
		want  []string
	}{
		"after a prompt":         {Block{Text: "$ ipwitness owners\nADDRESS  x\n  $ sh plan.sh\nipwitness is here\n"}, []string{"ipwitness owners", "sh plan.sh"}},
		"of ipwitness":           {Block{Text: "  ipwitness nodes # all\nkubectl ipwitness conflicts -P\ntext\nPod exec x -- /ipwitness doctor\n"}, []string{"ipwitness nodes # all", "kubectl ipwitness conflicts -P", "Pod exec x -- /ipwitness doctor"}},
		"of a shell":             {Block{Language: "sh", Text: "# why\ncd x\n\na \\\n  b\n"}, []string{"cd x", "a   b"}},
		"by their first program": {Block{Text: "podman build .\nother\n"}, []string{"podman build .", "other"}},
		"not incomplete ones":    {Block{Text: "ipwitness acknowledge ADDRESS --reason …\n"}, nil},
		"not in data":            {Block{Language: "yaml", Text: "kubectl: x\n"}, nil},
		"in a sentence":          {Block{Inline: true, Text: "ipwitness owners ADDRESS"}, []string{"ipwitness owners ADDRESS"}},
	}
	for name, tt := range tests {
		if got := tt.block.Commands(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}
