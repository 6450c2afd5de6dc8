package verdict

// FindingID is the id of a finding of a kind about a subject: the same wherever
// and whenever it is computed.
func FindingID(cluster, kind, subject string) string {
	return hashed(cluster, kind, subject)
}
