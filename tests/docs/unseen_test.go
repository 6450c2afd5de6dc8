package docs

import (
	"strings"
	"testing"
)

// unseen has the tests that would fail if what a line of docs/verdicts.md begins with were seen.
var unseen = map[string]string{
	"**Frames that enter no port":  "TestL16PrivateLinkInEveryLauncher TestTwinsOnABridgeInsideANamespace TestClaimsThatEnterNoPortAreUnseen",
	"**Networks in a namespace":    "TestL16PrivateLinkInEveryLauncher TestTwinsOnABridgeInsideANamespace TestTwinsOfRootlessContainers TestBridgesInNamespacesOfTheNode TestBridgesInNamespacesOfTwoNodes TestInterfacesOfContainersWithoutALink",
	"**Frames that are no claim":   "TestFramesMeanTheSameInKernelAndGo TestDecodeKnowsEachFrame",
	"**Answers that a node cannot": "TestTheNodeAnswersForAddressesThatAreNotOnTheLink TestProxyARPOfPrivateVLANsIsReported TestFramesThatANodeSendsAreNotSeenThere TestVRRPOfFRRHandsOverAndIsKilled TestKernelIsReadByNamespaceAndInterface TestClaimsThatEnterNoPortAreUnseen",
	"**Answers for several":        "TestAClaimByThePortOfAnotherIsASpoof TestL12RouterOutsideAnswersForMany TestASpeakerThatHasAnnouncedGoesOnToAnswer",
	"**MACs of other places":       "TestAMACByThePortOfAnotherIsCloned TestOneMACOfANodeAndOfAMachineOutsideIsUnseen",
	"**Beliefs**":                  "TestBeliefsThatAreNotStale TestBeliefsThatDifferArePublished",
	"**Copies":                     "TestTwoCopiesOfAVirtualMachineAreOneOwner TestNodesWithTheSameBootIDAndNamespace",
	"**Link-local addresses":       "TestLinkLocalAddressesOfOneVirtualMACAreUnseen",
	"**Who gave an address up":     "TestHostThatGivesAStaticAddressUpToAnotherMachineIsReported TestAddressThatWasGivenUpToAnotherHost",
	"**What exceeds a limit":       "TestFramesLostToAFullRingAreReportedLater TestFloodOfMadeUpAddressesIsLimitedAndCounted TestAFloodHidesNoDuplicateAndIsNamed TestTheBudgetOfANode",
	"**Ports of Open vSwitch":      "TestTenantsWithoutTheKubernetesAPI TestPodsOnOpenVSwitchPorts TestTenantsOfTheCluster TestNetworksOfPods",
	"**LANs**":                     "TestFramesJoinLinksOnceTheirSenderIsKnown TestSubnetsOfANodeOverlap TestForgedFramesMakeNoConflictOfTwoLANs TestAForgedFrameConfirmsNoConflictOfTwoLANs",
}

func TestWhatIsNotSeenHasTests(t *testing.T) {
	existing := tests(t)
	_, rest, _ := strings.Cut(read(t, "docs/verdicts.md"), "\n## What is not seen\n")
	lines := 0
	for line := range strings.Lines(rest) {
		if strings.HasPrefix(line, "## ") {
			break
		}
		text, is := strings.CutPrefix(line, "- ")
		if !is {
			continue
		}
		lines++
		known := false
		for beginning, names := range unseen {
			if !strings.HasPrefix(text, beginning) {
				continue
			}
			known = true
			for name := range strings.FieldsSeq(names) {
				if !existing[name] {
					t.Errorf("%q: there is no %s", beginning, name)
				}
			}
		}
		if !known {
			t.Errorf("no test shows that this is not seen: %s", text)
		}
	}
	if lines != len(unseen) {
		t.Errorf("got %d lines, and tests of %d", lines, len(unseen))
	}
}
