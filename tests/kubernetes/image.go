package kubernetes

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Image returns the path of the archive from `make image` and the name of the image. The path is
// IPWITNESS_IMAGE, or bin/ipwitness-image.tar beside bin/kubernetes.
func Image() (archive, name string, err error) {
	if archive = os.Getenv("IPWITNESS_IMAGE"); archive == "" {
		programs, err := Programs()
		if err != nil {
			return "", "", err
		}
		archive = filepath.Join(programs, "../ipwitness-image.tar")
	}
	f, err := os.Open(archive)
	if err != nil {
		return "", "", fmt.Errorf("no image: run 'make image', or set IPWITNESS_IMAGE: %w", err)
	}
	defer func() { _ = f.Close() }()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err != nil {
			return "", "", fmt.Errorf("find index.json in %s: %w", archive, err)
		}
		if h.Name != "index.json" {
			continue
		}
		var index struct {
			Manifests []struct{ Annotations map[string]string }
		}
		if err := json.NewDecoder(r).Decode(&index); err != nil || len(index.Manifests) == 0 {
			return "", "", fmt.Errorf("read index.json of %s: %w", archive, err)
		}
		return archive, index.Manifests[0].Annotations["io.containerd.image.name"], nil
	}
}

// AgentImage returns the name of the image of the agent, which belongs to an image of ipwitness.
func AgentImage(name string) string {
	tag := strings.LastIndex(name, ":")
	return name[:tag] + "-agent" + name[tag:]
}

// ImportImage imports the image of ipwitness, and that of its agent from the archive beside it, into the
// runtimes of all nodes, also under other names, and returns the name of the first.
func (c *Cluster) ImportImage(ctx context.Context, also ...string) (name string, err error) {
	archive, name, err := Image()
	if err != nil {
		return "", err
	}
	agents := filepath.Join(filepath.Dir(archive), strings.Replace(filepath.Base(archive), "ipwitness", "ipwitness-agent", 1))
	for _, n := range c.Nodes {
		err := n.importImage(ctx, archive, name, also...)
		var agentsAlso []string
		for _, other := range also {
			agentsAlso = append(agentsAlso, AgentImage(other))
		}
		if err == nil {
			err = n.importImage(ctx, agents, AgentImage(name), agentsAlso...)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	return name, nil
}

// importImage imports the image in an archive, also under other names.
func (n *Node) importImage(ctx context.Context, archive, name string, also ...string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	err = n.Runtime.ImportArchive(ctx, name, f)
	_ = f.Close()
	for _, other := range also {
		if err == nil {
			_, err = n.Output(n.Runtime.Command("ctr", "--namespace", "k8s.io", "images", "tag", "--force", name, other))
		}
	}
	return err
}
