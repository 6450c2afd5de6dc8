package docs

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/tests/snippets"
)

// ran are the pages whose sh blocks a test runs as they are, in the order of the page.
var ran = map[string]string{
	"docs/install-kubernetes.md": "TestInstallGuide",
	"docs/install-linux.md":      "TestPackageOnAHostWithSystemd",
	"docs/tutorial.md":           "TestTutorial",
}

// elsewhere are the other commands that are not of ipwitness, with the test that runs them; where it
// has no test, the reason for that.
var elsewhere = []struct{ pages, command, evidence string }{
	{"README.md", `^git clone `, "CI runs .ci/run in a fresh clone"},
	{"README.md", `^bin/ipwitness (owners|status)`, "TestDocumentedCommandsRun"},
	{"docs/reference.md", `^source <\(ipwitness completion bash\)$`, "TestDocumentedCommandsRun"},
	{"README.md|docs/install-linux.md", `^podman `, "TestTheContainerOfTheREADMEObservesTheHost"},
	{"docs/install-kubernetes.md", `^docker (build|push) `, "needs a registry; TestImageEqualsTheDockerfiles builds the same file"},
	{"README.md|deploy/helm/ipwitness/README.md", `^helm install ipwitness deploy/helm/ipwitness --namespace ipwitness --create-namespace$`, "TestInstallGuide"},
	{"deploy/manifests/README.md", `^(kubectl apply|deploy/manifests/certificates\.sh)`, "TestInstallGuide"},
	{"docs/(reference|tour).md", `^(sh|less) plan\.sh`, "TestTutorial"},
	{"docs/reference.md", `^kubectl get nodes -o name \| xargs `, "TestPodsOfTwoNodesWithOneAddress"},
	{"docs/reference.md", `^cp -a /backup/`, "TestABackupIsRestored"},
	{"docs/(export|security).md", `openssl rand `, "TestDocumentedCommandsRun"},
	{"docs/install-kubernetes.md", `^oc adm `, "needs OpenShift; the page says that it is not tested"},
	{"docs/release.md", `^(git checkout|ls bin/release/dist)`, "TestTheChecksumsOfAReleaseAreThoseOfItsFiles"},
	{"docs/release.md", `^(skopeo|helm push|gh release) `, "needs credentials for a registry and a repository"},
	{"docs/runbooks/.*", `^(kubectl|curl|openssl|timedatectl|chronyc|crictl) `, "asks a program that is not ours, and changes nothing"},
}

// make matches a target of make in a command line.
var makeTarget = regexp.MustCompile(`\bmake ([a-z][a-z-]*)`)

func TestEachCommandOfTheDocsIsRunByATest(t *testing.T) {
	blocks, err := snippets.Blocks(root)
	if err != nil {
		t.Fatal(err)
	}
	known, makefile := tests(t), read(t, "Makefile")
	for _, e := range elsewhere {
		if strings.HasPrefix(e.evidence, "Test") && !known[e.evidence] {
			t.Errorf("there is no test %s", e.evidence)
		}
	}
	for page, name := range ran {
		if !known[name] {
			t.Errorf("%s: there is no test %s", page, name)
		}
	}
	used, checked := map[int]bool{}, 0
	for _, b := range blocks {
		if b.Language == "sh" && ran[b.Page] != "" || b.Page == "CONTRIBUTING.md" {
			continue
		}
		for _, command := range b.Commands() {
			checked++
			for _, m := range makeTarget.FindAllStringSubmatch(command, -1) {
				if !strings.Contains(makefile, "\n"+m[1]+":") {
					t.Errorf("%s: %s: there is no such target", b.Page, command)
				}
			}
			if snippets.OfIpwitness(command) || strings.HasPrefix(command, "make ") {
				continue // TestDocumentedCommandsRun
			}
			if i := slices.IndexFunc(elsewhere, func(e struct{ pages, command, evidence string }) bool {
				return regexp.MustCompile("^("+e.pages+")$").MatchString(b.Page) && regexp.MustCompile(e.command).MatchString(command)
			}); i >= 0 {
				used[i] = true
			} else {
				t.Errorf("%s: no test runs %q: add it to one, and to elsewhere", b.Page, command)
			}
		}
	}
	for i, e := range elsewhere {
		if !used[i] {
			t.Error(fmt.Sprint("no page has ", e.command, " any more"))
		}
	}
	if checked < 150 {
		t.Errorf("got %d commands, want all of the documentation: does the parser find them?", checked)
	}
}
