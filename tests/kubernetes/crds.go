package kubernetes

import (
	"context"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

//go:embed testdata/crds/*.yaml
var restated embed.FS

// IPAMs are those whose custom resources ApplyCRDs knows.
var IPAMs = []string{"whereabouts", "calico", "cilium"}

// foreign are where the definitions of others are, which make kubernetes gets.
var foreign = map[string][]string{
	"calico":     {"calico-crds/*_ip*.yaml", "calico-crds/*_blockaffinities.yaml"},
	"prometheus": {"operator-crds/*_servicemonitors.yaml", "operator-crds/*_podmonitors.yaml", "operator-crds/*_prometheusrules.yaml"},
	// Its ClusterIssuers are as its Issuers.
	"cert-manager": {"operator-crds/cert-manager.io_certificates.yaml", "operator-crds/cert-manager.io_issuers.yaml"},
}

// crds are the definitions of the custom resources of an IPAM or an operator: its own,
// or else what is used of them.
func (c *Cluster) crds(whose string) (string, error) {
	if foreign[whose] == nil {
		text, err := restated.ReadFile("testdata/crds/" + whose + ".yaml")
		if err != nil {
			return "", fmt.Errorf("no custom resources of %s are known: %w", whose, err)
		}
		return string(text), nil
	}
	var all []string
	for _, pattern := range foreign[whose] {
		files, err := filepath.Glob(filepath.Join(c.programs, pattern))
		if err != nil {
			return "", err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return "", err
			}
			all = append(all, strings.TrimPrefix(string(text), "---\n"))
		}
	}
	if len(all) == 0 {
		return "", fmt.Errorf("no custom resources of %s in %s: run 'make kubernetes'", whose, c.programs)
	}
	return strings.Join(all, "\n---\n"), nil
}

// ApplyCRDs has the API server know the custom resources of some of IPAMs or operators, and waits
// until it does.
func (c *Cluster) ApplyCRDs(ctx context.Context, whose ...string) error {
	for _, name := range whose {
		text, err := c.crds(name)
		if err != nil {
			return err
		}
		if err := c.Apply(ctx, text); err != nil {
			return err
		}
		if _, err := c.kubectl(ctx, text, "wait", "--for=condition=Established", "--filename", "-", "--timeout=2m"); err != nil {
			return err
		}
		names, err := c.kubectl(ctx, text, "get", "--filename", "-", "--output", "jsonpath={.items[*].metadata.name}")
		if err != nil {
			return err
		}
		// It begins to keep them when it is asked first: until then it can neither list
		// them nor, for a minute, delete their definitions.
		err = c.await(ctx, "the custom resources of "+name, func() error {
			_, err := c.Kubectl(ctx, "get", "--all-namespaces", strings.Join(strings.Fields(names), ","))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// DeleteCRDs undoes ApplyCRDs: with the custom resources goes all that is of them.
func (c *Cluster) DeleteCRDs(ctx context.Context, whose ...string) error {
	for _, name := range whose {
		text, err := c.crds(name)
		if err != nil {
			return err
		}
		if _, err := c.kubectl(ctx, text, "delete", "--ignore-not-found", "--filename", "-", "--timeout=2m"); err != nil {
			return err
		}
	}
	return nil
}
