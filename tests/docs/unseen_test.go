package docs

import (
	"strings"
	"testing"
)

// unseen has the tests that would fail if what a line of docs/verdicts.md begins with were seen.
var unseen = map[string]string{
	"Private links": "TestL16PrivateLinkInEveryLauncher TestTwinsOnABridgeInsideANamespace TestTwinsOfRootlessContainers",
	"Frames on a bridge in another namespace":                            "TestClaimsThatEnterNoPortAreUnseen",
	"Frames between two macvlan":                                         "TestClaimsThatEnterNoPortAreUnseen",
	"A **macvtap** guest":                                                "TestClaimsThatEnterNoPortAreUnseen",
	"A claim under more than two VLANs":                                  "TestFramesMeanTheSameInKernelAndGo TestDecodeKnowsEachFrame",
	"A node that answers for an address by what the agent does not read": "TestTheNodeAnswersForAddressesThatAreNotOnTheLink",
	"What a program on a node sends by itself":                           "TestFramesThatANodeSendsAreNotSeenThere",
	"A host that gives up an address without a lifetime":                 "TestAddressThatAClientGaveUpToAnotherHost",
	"Router solicitations":                                               "TestFramesMeanTheSameInKernelAndGo",
	"A backup router of FRR":                                             "TestVRRPOfFRRHandsOverAndIsKilled",
	"A pod's answer for an address that no kernel":                       "TestAClaimByThePortOfAnotherIsASpoof TestL12RouterOutsideAnswersForMany",
	"A frame through a pod's port with the MAC":                          "TestAMACByThePortOfAnotherIsCloned",
	"A node that answers as a proxy for a host":                          "TestKernelIsReadByNamespaceAndInterface",
	"Overlapping subnets of a node on two cards":                         "TestSubnetsOfANodeOverlap",
	"Two copies of a virtual machine":                                    "TestTwoCopiesOfAVirtualMachineAreOneOwner",
	"One MAC at two places of a LAN":                                     "TestOneMACOfANodeAndOfAMachineOutsideIsUnseen",
	"A frame for which the ring buffer had no room":                      "TestFramesLostToAFullRingAreReportedLater",
	"New bindings beyond the observer's limits":                          "TestFloodOfMadeUpAddressesIsLimitedAndCounted TestAFloodHidesNoDuplicateAndIsNamed",
	"Records that an aggregator leaves out":                              "TestTheBudgetOfANode",
	"Two virtual machines or containers without":                         "TestTenantsWithoutTheKubernetesAPI",
	"A machine on a LAN that has the address of a pod":                   "TestPodsOnOpenVSwitchPorts",
	"In a cluster with several VPCs of Kube-OVN":                         "TestTenantsOfTheCluster TestPodsOnOpenVSwitchPorts",
	"A duplicate of a pod whose annotations":                             "TestNetworksOfPods TestPodsOnOpenVSwitchPorts",
	"Interfaces of pods that are not one end":                            "TestClaimsThatEnterNoPortAreUnseen",
	"A LAN that two nodes share, before":                                 "TestFramesJoinLinksOnceTheirSenderIsKnown",
	"Two LANs that are taken for one":                                    "TestForgedFramesMakeNoConflictOfTwoLANs TestAForgedFrameConfirmsNoConflictOfTwoLANs",
	"A VXLAN device with the option `proxy` in another":                  "TestClaimsThatEnterNoPortAreUnseen TestTheNodeAnswersForAddressesThatAreNotOnTheLink",
	"Two machines with one boot id and one namespace":                    "TestNodesWithTheSameBootIDAndNamespace",
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
