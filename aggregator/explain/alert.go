package explain

import "fmt"

// AlertText is the text of an alert.
type AlertText struct{ Summary, Description, Runbook string }

// ConflictAlert returns the text of the alert of a conflict. summary is the text of the conflict.
func ConflictAlert(address, cause, id, summary string, confirmed bool) AlertText {
	if !confirmed {
		return AlertText{
			Summary: fmt.Sprintf("%s may be held by two owners", address),
			Description: fmt.Sprintf("%s For ten minutes, the conflict could be neither confirmed nor resolved. "+
				"`ipwitness explain %s` shows which evidence is missing.", summary, address),
			Runbook: Runbook(cause),
		}
	}
	return AlertText{
		Summary: fmt.Sprintf("%s is held by two or more owners (%s)", address, cause),
		Description: fmt.Sprintf("%s The conflict is confirmed: connections to this address reach different owners at different times. "+
			"`ipwitness conflicts %s` shows the evidence, the cause and the steps to take.", summary, id),
		Runbook: Runbook(cause),
	}
}

// FindingAlert returns the text of the alert of a finding. summary is the text of the finding.
func FindingAlert(kind, id, summary string) AlertText {
	return AlertText{
		Summary:     summary,
		Description: fmt.Sprintf("%s `ipwitness audit %s` shows the evidence and the steps to take.", summary, id),
		Runbook:     Runbook(kind),
	}
}

// OwnerChanged says that an owner of an address appeared, changed or is gone.
func OwnerChanged(address, namespace, name, node string, added, removed bool) string {
	who := "An owner"
	switch {
	case namespace != "" && name != "":
		who = fmt.Sprintf("Pod %s/%s", namespace, name)
	case name != "":
		who = name
	}
	where := ""
	if node != "" {
		where = " on node " + node
	}
	switch {
	case added:
		return fmt.Sprintf("%s%s holds %s.", who, where, address)
	case removed:
		return fmt.Sprintf("%s%s no longer holds %s.", who, where, address)
	}
	return fmt.Sprintf("%s%s, which holds %s, has changed.", who, where, address)
}

// NodeChanged says that a node is connected or disconnected.
func NodeChanged(name string, live bool) string {
	if live {
		return fmt.Sprintf("Node %s is connected.", name)
	}
	return fmt.Sprintf("Node %s is disconnected.", name)
}
