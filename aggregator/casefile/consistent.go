package casefile

import (
	"fmt"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// consistent checks conditions that a judgement relies on and that involve several fields.
func consistent(c *verdict.Case) *fault {
	for i := range c.Before {
		f := &c.Before[i]
		if (f.Kind == verdict.FindingAddressSpoofed || f.Kind == verdict.FindingMACCloned) && f.Spoof == nil {
			return faultf("required for a finding of kind %s", f.Kind).in("spoof").in(fmt.Sprintf("before[%d]", i))
		}
	}
	return nil
}
