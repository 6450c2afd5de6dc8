package ipam

// Docs is what the documentation says about one IPAM. `make generate` puts it into the pages.
type Docs struct {
	// Supported are the rows of the IPAM in docs/supported.md.
	Supported []Supported
	// Mounts are the files that the agent reads for the IPAM, for docs/permissions.md.
	Mounts []Mount
	// Plan is what `ipwitness audit --fix-plan` does; nil if it does nothing.
	Plan *Plan
	// Runbooks has the paragraphs of the runbooks about the IPAM, in Markdown. The heading of each
	// paragraph is the name that a page asks for it by.
	Runbooks string
}

// Supported is a row of the table of IPAMs in docs/supported.md, in Markdown.
type Supported struct {
	// What is read, such as "Calico IPAM (Kubernetes datastore)".
	What string
	// State says how it is tested. Evidence names the tests.
	State, Evidence string
}

// A Mount is a directory that the agent reads on a node, in Markdown.
type Mount struct {
	// Files are the paths and their contents. Mount is the directory to mount, as in the table of
	// mounts. Without says what is not known without them.
	Files, Mount, Without string
}

// Plan is what the plan does about the findings of an IPAM, in Markdown.
type Plan struct {
	InUseUnallocated, BookedElsewhere, Leaked string
}
