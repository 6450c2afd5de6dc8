package access

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	// believed is how long the answer to a review counts, denied how long one that
	// says no does: rights that were just given are not waited for.
	believed = time.Minute
	denied   = 5 * time.Second
	// withoutAPI is how long an answer counts while the API server does not answer.
	withoutAPI = 15 * time.Minute
	// reviewWithin is how long a review may take, atOnce how many are under way.
	reviewWithin = 10 * time.Second
	atOnce       = 64
	// maxReviews is how many answers are kept.
	maxReviews = 20_000
)

// reviews are the answers of Kubernetes, kept for a while.
type reviews struct {
	ask   Reviewer
	slots chan struct{}
	group singleflight.Group
	now   func() time.Time

	mu      sync.Mutex
	answers map[[sha256.Size]byte]answer
}

type answer struct {
	who Subject
	yes bool
	err error
	at  time.Time
}

func newReviews(ask Reviewer) *reviews {
	return &reviews{ask: ask, slots: make(chan struct{}, atOnce), now: time.Now, answers: map[[sha256.Size]byte]answer{}}
}

// token gives whom a token is of that is meant for one of some audiences. A token that
// is not remembered is asked for only where may allows it; refused counts that it was
// no good. Both happen while one of few asks: many at once are no way around them.
func (r *reviews) token(ctx context.Context, token string, audiences []string, may func() error, refused func()) (Subject, error) {
	key := sha256.Sum256([]byte("token\x00" + strings.Join(audiences, "\x00") + "\x00" + token))
	a := r.review(ctx, key, func(ctx context.Context) answer {
		if a, ok := r.known(key); !ok || !a.yes {
			if err := may(); err != nil {
				return answer{err: err}
			}
		}
		var first error
		for _, audience := range audiences {
			who, err := r.ask.ReviewToken(ctx, token, audience)
			if err == nil || !errors.Is(err, ErrRefused) {
				return answer{who: who, yes: err == nil, err: err}
			}
			first = cmp.Or(first, err)
		}
		refused()
		return answer{err: first}
	})
	return a.who, a.err
}

// access tells whether a subject may do something.
func (r *reviews) access(ctx context.Context, who Subject, what Action) (bool, error) {
	key, err := json.Marshal([]any{who, what.String()})
	if err != nil {
		return false, err
	}
	a := r.review(ctx, sha256.Sum256(key), func(ctx context.Context) answer {
		yes, err := r.ask.ReviewAccess(ctx, who, what)
		return answer{yes: yes, err: err}
	})
	return a.yes, a.err
}

// review gives an answer that still counts, or asks for one; many who want the same
// at once ask once.
func (r *reviews) review(ctx context.Context, key [sha256.Size]byte, ask func(context.Context) answer) answer {
	old, known := r.known(key)
	age := r.now().Sub(old.at)
	if known && (old.yes && age < believed || !old.yes && age < denied) {
		return old
	}
	got := r.group.DoChan(string(key[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewWithin)
		defer cancel()
		select {
		case r.slots <- struct{}{}:
			defer func() { <-r.slots }()
		case <-ctx.Done():
			return answer{err: errors.New("too many are asked for at once")}, nil
		}
		a := ask(ctx)
		a.at = r.now()
		if a.err == nil || errors.Is(a.err, ErrRefused) {
			r.keep(key, a)
		}
		return a, nil
	})
	select {
	case <-ctx.Done():
		return answer{err: ctx.Err()}
	case result := <-got:
		a := result.Val.(answer)
		if a.err != nil && !errors.Is(a.err, ErrRefused) && known && old.yes && age < withoutAPI {
			return old
		}
		return a
	}
}

func (r *reviews) known(key [sha256.Size]byte) (answer, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, ok := r.answers[key]
	return a, ok
}

func (r *reviews) keep(key [sha256.Size]byte, a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.answers) >= maxReviews {
		for k, old := range r.answers {
			if r.now().Sub(old.at) > believed {
				delete(r.answers, k)
			}
		}
		if len(r.answers) >= maxReviews {
			clear(r.answers)
		}
	}
	r.answers[key] = a
}
