package casefile

import (
	"fmt"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// consistent checks what a judgement relies on and the presence of fields does not show.
func consistent(c *verdict.Case) *fault {
	for i := range c.Conflicts {
		if err := consistentConflict(&c.Conflicts[i]); err != nil {
			return err.in(fmt.Sprintf("conflicts[%d]", i))
		}
	}
	for i := range c.Before {
		f := &c.Before[i]
		if (f.Kind == verdict.FindingAddressSpoofed || f.Kind == verdict.FindingMACCloned) && f.Spoof == nil {
			return wrong("a finding of kind %s needs one", f.Kind).in("spoof").in(fmt.Sprintf("before[%d]", i))
		}
	}
	return nil
}

func consistentConflict(c *verdict.Conflict) *fault {
	for i := range c.Owners {
		o := &c.Owners[i]
		var err *fault
		switch {
		case len(o.Claims) == 0:
			err = wrong("an owner in a conflict has claims").in("claims")
		case o.Orphaned && o.Pod == nil:
			err = wrong("an orphaned owner has one").in("pod")
		}
		if err != nil {
			return err.in(fmt.Sprintf("owners[%d]", i))
		}
	}
	for i, at := range c.Order {
		if int(at) >= len(c.Owners) {
			return wrong("there is no owner %d", at).in(fmt.Sprintf("order[%d]", i))
		}
	}
	return nil
}
