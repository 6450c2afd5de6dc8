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
	// believed is how long a positive answer is valid, and denied how long a negative one. The
	// latter is short so that new rights take effect soon.
	believed = time.Minute
	denied   = 5 * time.Second
	// withoutAPI is how long a positive answer is valid while the API server is unavailable.
	withoutAPI = 15 * time.Minute
	// reviewWithin limits the duration of a review, and atOnce the number of concurrent
	// reviews.
	reviewWithin = 10 * time.Second
	atOnce       = 64
	// maxReviews limits the number of stored answers.
	maxReviews = 20_000
)

// reviews asks Kubernetes about tokens and rights, and keeps the answers for a while.
//
// It does not use the delegating authenticator and authorizer of k8s.io/apiserver. They cannot
// use an answer for longer while the API server is unavailable, and they cannot limit the
// reviews that wrong tokens cause. They would also add 24 MB to the program and 15 MB to the
// memory of the aggregator and of each agent.
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

// token returns the subject of a token for one of the audiences. An unknown token is
// reviewed only if may allows it, and refused is called if it is not accepted. Both run
// while the review holds one of the slots, so that many concurrent calls cannot evade them.
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

// review returns an answer that is recent enough, or asks for one. Concurrent calls for the
// same key ask once.
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
			return answer{err: errors.New("too many reviews in progress")}, nil
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
