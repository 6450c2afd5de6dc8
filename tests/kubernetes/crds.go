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

// IPAMs are the IPAM implementations whose custom resources ApplyCRDs knows.
var IPAMs = []string{"whereabouts", "calico", "cilium"}

// foreign are the files of the upstream definitions, which make kubernetes downloads.
var foreign = map[string][]string{
	"calico":     {"calico-crds/*_ip*.yaml", "calico-crds/*_blockaffinities.yaml"},
	"prometheus": {"operator-crds/*_servicemonitors.yaml", "operator-crds/*_podmonitors.yaml", "operator-crds/*_prometheusrules.yaml"},
	// ClusterIssuers have the same structure as Issuers.
	"cert-manager": {"operator-crds/cert-manager.io_certificates.yaml", "operator-crds/cert-manager.io_issuers.yaml"},
}

// NativeCalico selects Calico's custom resources in the group and version of its newer definitions,
// which are missing from the Go module. Their structure is the same.
const NativeCalico = "calico, native"

// crds returns the definitions of an IPAM or operator: the upstream ones, or otherwise a reduced
// version.
func (c *Cluster) crds(whose string) (string, error) {
	if whose == NativeCalico {
		text, err := c.crds("calico")
		return strings.NewReplacer("crd.projectcalico.org", "projectcalico.org", "name: v1\n", "name: v3\n").Replace(text), err
	}
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

// ApplyCRDs applies the definitions of IPAMs or operators, and waits until the API server serves
// the custom resources.
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
		// The API server sets up the storage of a resource at the first request. Before that, it
		// cannot list the resource, and for a minute it cannot delete the definition.
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

// DeleteCRDs deletes the definitions, and with them all custom resources.
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
