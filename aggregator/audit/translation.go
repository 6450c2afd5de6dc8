package audit

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// clocksDiffer is how far the clocks of two nodes may differ after they were compared.
const clocksDiffer = time.Second

// A Tenure is what is recorded about an owner of an address.
type Tenure struct {
	// Since is since when the workload of the owner has had the address, in this network namespace or a former one, by the clock
	// of its node; 0 if nothing is recorded.
	Since verdict.Stamp
	// Former is the last other workload that had it; nil if none is recorded.
	Former *verdict.Former
}

// Translations returns the finding nat-to-former-owner about connections that nodes send to the address of a case: those that
// existed before any of its owners had it. It returns nil if there is none. tenures are by the ID of the owner.
func Translations(p *verdict.Policy, c *verdict.Case, owners []verdict.Owner, tenures map[string]Tenure, all []verdict.Translation) *verdict.Finding {
	f := &verdict.Finding{
		ID: verdict.FindingID(p.Cluster, verdict.FindingNATToFormerOwner, c.Address.String()), Kind: verdict.FindingNATToFormerOwner,
		Severity: verdict.Warning, Address: c.Address, Since: c.Now,
	}
	for _, o := range owners {
		if o.State == verdict.Gone || o.Excluded != nil {
			continue
		}
		f.Owners = append(f.Owners, o)
		was := tenures[o.ID].Former
		if i := slices.IndexFunc(c.Former, func(f verdict.Former) bool { return f.Next == o.ID }); was == nil && i >= 0 {
			was = &c.Former[i]
		}
		if was != nil && (f.Former == nil || was.Until > f.Former.Until) {
			f.Former, f.Severity = was, verdict.Critical
		}
	}
	for _, t := range all {
		if t.Existed != 0 && len(f.Owners) > 0 && !slices.ContainsFunc(f.Owners, func(o verdict.Owner) bool { return mayBeOf(&t, &o, tenures[o.ID].Since) }) {
			f.Translations = append(f.Translations, t)
		}
	}
	if len(f.Translations) == 0 {
		return nil
	}
	slices.SortFunc(f.Translations, CompareTranslations)
	return f
}

// CompareTranslations is the order of translations.
func CompareTranslations(x, y verdict.Translation) int {
	return cmp.Or(strings.Compare(x.Node.Name, y.Node.Name), strings.Compare(x.Protocol, y.Protocol), x.To.Compare(y.To), x.From.Compare(y.From))
}

// mayBeOf reports whether a connection may have been made while an owner had the address, or its workload since a recorded time.
func mayBeOf(t *verdict.Translation, o *verdict.Owner, recorded verdict.Stamp) bool {
	since, apart := o.TenureSince(), clocksDiffer
	if since == 0 {
		return true
	}
	if recorded != 0 {
		since = min(since, recorded)
	}
	if o.Node.Is(t.Node) {
		apart = 0
	}
	return t.Existed.Add(apart-t.Node.Skew) >= since.Add(-o.Node.Skew)
}
