package kube

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/ipwitness/ipwitness/aggregator/access"
)

// ReviewToken implements access.Reviewer.
func (c *Cluster) ReviewToken(ctx context.Context, token, audience string) (access.Subject, error) {
	ask := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if audience != "" {
		ask.Spec.Audiences = []string{audience}
	}
	var got authenticationv1.TokenReview
	if err := c.clients.authentication.Post().Resource("tokenreviews").Body(ask).Do(ctx).Into(&got); err != nil {
		return access.Subject{}, fmt.Errorf("create a TokenReview: %w", err)
	}
	switch {
	case !got.Status.Authenticated:
		reason := cmp.Or(got.Status.Error, "unknown token")
		return access.Subject{}, fmt.Errorf("%w: %s", access.ErrRefused, reason)
	case audience != "" && !slices.Contains(got.Status.Audiences, audience):
		// API servers without support for audiences return none.
		return access.Subject{}, fmt.Errorf("%w: the token is not for audience %s", access.ErrRefused, audience)
	}
	who := access.Subject{Name: got.Status.User.Username, UID: got.Status.User.UID, Groups: got.Status.User.Groups}
	for key, values := range got.Status.User.Extra {
		if who.Extra == nil {
			who.Extra = map[string][]string{}
		}
		who.Extra[key] = values
	}
	return who, nil
}

// ReviewAccess implements access.Reviewer.
func (c *Cluster) ReviewAccess(ctx context.Context, who access.Subject, what access.Action) (bool, error) {
	ask := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: who.Name, UID: who.UID, Groups: who.Groups,
	}}
	for key, values := range who.Extra {
		if ask.Spec.Extra == nil {
			ask.Spec.Extra = map[string]authorizationv1.ExtraValue{}
		}
		ask.Spec.Extra[key] = values
	}
	if what.Path != "" {
		ask.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: what.Path, Verb: what.Verb}
	} else {
		ask.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
			Group: access.Group, Resource: what.Resource, Subresource: what.Subresource, Verb: what.Verb,
		}
	}
	var got authorizationv1.SubjectAccessReview
	if err := c.clients.authorization.Post().Resource("subjectaccessreviews").Body(ask).Do(ctx).Into(&got); err != nil {
		return false, fmt.Errorf("create a SubjectAccessReview: %w", err)
	}
	return got.Status.Allowed && !got.Status.Denied, nil
}
