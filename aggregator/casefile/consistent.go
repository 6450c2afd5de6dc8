package casefile

import (
	"fmt"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// consistent checks what a judgement relies on beyond the presence of fields.
func consistent(c *verdict.Case) *fault {
	for i := range c.Before {
		f := &c.Before[i]
		if (f.Kind == verdict.FindingAddressSpoofed || f.Kind == verdict.FindingMACCloned) && f.Spoof == nil {
			return wrong("a finding of kind %s needs one", f.Kind).in("spoof").in(fmt.Sprintf("before[%d]", i))
		}
	}
	return nil
}
