package verdict

// Judge judges one address.
func (p *Policy) Judge(in *Case) Judgement {
	j := judging{policy: p, in: in}
	return j.judge()
}

func (j *judging) judge() Judgement {
	(&attributing{judging: j}).owners()
	spoofing{j}.spoofs()
	(&comparing{judging: j}).conflicts()
	return j.out
}
