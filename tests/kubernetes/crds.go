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

// crds are the definitions of the custom resources of an IPAM: Calico's own, and what is
// used of the others'.
func (c *Cluster) crds(ipam string) (string, error) {
	if ipam != "calico" {
		text, err := restated.ReadFile("testdata/crds/" + ipam + ".yaml")
		if err != nil {
			return "", fmt.Errorf("no custom resources of %s are known: %w", ipam, err)
		}
		return string(text), nil
	}
	var all []string
	for _, pattern := range []string{"*_ip*.yaml", "*_blockaffinities.yaml"} {
		files, err := filepath.Glob(filepath.Join(c.programs, "calico-crds", pattern))
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
		return "", fmt.Errorf("no custom resources of Calico in %s/calico-crds: run 'make kubernetes'", c.programs)
	}
	return strings.Join(all, "\n---\n"), nil
}

// ApplyCRDs has the API server know the custom resources of some of IPAMs, and waits
// until it does.
func (c *Cluster) ApplyCRDs(ctx context.Context, ipams ...string) error {
	for _, ipam := range ipams {
		text, err := c.crds(ipam)
		if err != nil {
			return err
		}
		if err := c.Apply(ctx, text); err != nil {
			return err
		}
		if _, err := c.kubectl(ctx, text, "wait", "--for=condition=Established", "--filename", "-", "--timeout=1m"); err != nil {
			return err
		}
		names, err := c.kubectl(ctx, text, "get", "--filename", "-", "--output", "jsonpath={.items[*].metadata.name}")
		if err != nil {
			return err
		}
		// It begins to keep them when it is asked first: until then it can neither list
		// them nor, for a minute, delete their definitions.
		err = c.await(ctx, "the custom resources of "+ipam, func() error {
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
func (c *Cluster) DeleteCRDs(ctx context.Context, ipams ...string) error {
	for _, ipam := range ipams {
		text, err := c.crds(ipam)
		if err != nil {
			return err
		}
		if _, err := c.kubectl(ctx, text, "delete", "--ignore-not-found", "--filename", "-", "--timeout=1m"); err != nil {
			return err
		}
	}
	return nil
}
