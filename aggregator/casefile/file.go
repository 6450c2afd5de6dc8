package casefile

import "github.com/ipwitness/ipwitness/aggregator/verdict"

// Format is the version of the file format. It changes when a program that reads the previous
// version would misread a file.
const Format = 1

// A File is a case with everything that is needed to judge it again.
type File struct {
	// Version is the version of the ipwitness that made the case.
	Version string
	// Pseudonymous is set if pseudonyms replace names, hardware addresses and ids.
	Pseudonymous bool
	// Policy is the policy that the case was judged by.
	Policy *verdict.Policy
	Case   *verdict.Case
}
