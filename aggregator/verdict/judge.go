package verdict

// Judge judges one address.
func (p *Policy) Judge(in *Case) Judgement { return NewJudge(p).Judge(in) }

// A Judge judges one address after another and reuses its memory: a judgement is valid until the
// next one unless Keep is called. A Judge is not safe for concurrent use. Use NewJudge.
type Judge struct {
	judging evaluation
	memory  memory
}

// memory is the memory that a Judge reuses.
type memory struct {
	owners           []Owner
	claims, assigned []*Claim
	evidence         []evidence
}

// NewJudge returns a Judge with a policy.
func NewJudge(p *Policy) *Judge { return &Judge{judging: evaluation{policy: p}} }

// Judge judges one address.
func (g *Judge) Judge(in *Case) Judgement {
	g.judging = evaluation{policy: g.judging.policy, in: in, memory: &g.memory}
	return g.judging.judge()
}

// Keep makes the last judgement valid beyond the next one. It must be called before the judgement
// is shared.
func (g *Judge) Keep() { g.memory.owners, g.memory.claims = nil, nil }

func (j *evaluation) judge() Judgement {
	for _, c := range j.in.Claims {
		if c.unplugged() && !c.fromOutside() {
			j.unplugged = append(j.unplugged, c)
		}
	}
	(&attribution{evaluation: j}).owners()
	spoofDetection{j}.spoofs()
	(&comparison{evaluation: j}).conflicts()
	return j.out
}

// ownerTable returns an empty table with capacity for the owners of some claims.
func (m *memory) ownerTable(claims []*Claim) ownerTable {
	if m.owners == nil {
		kernels := 0
		for _, c := range claims {
			if c.Kind == Assigned {
				kernels++
			}
		}
		m.owners = make([]Owner, 0, max(1, kernels)) // most owners are known from kernels
	}
	l := ownerTable{owners: m.owners[:0], evidence: m.evidence[:0]}
	if len(claims) > manyClaims {
		l.byID = make(map[string]int, len(claims))
	}
	return l
}
