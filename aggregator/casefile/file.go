package casefile

import "github.com/ipwitness/ipwitness/aggregator/verdict"

// Format is the version of the file format. It is raised whenever a program for the previous
// version would misread a file.
const Format = 1

// A File is a case with everything that is needed to judge it again.
type File struct {
	// Version is the version of ipwitness that wrote the case.
	Version string
	// Policy is the policy by which the case was judged.
	Policy *verdict.Policy
	Case   *verdict.Case
}
