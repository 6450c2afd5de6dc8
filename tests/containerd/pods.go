package containerd

import (
	"context"
	"fmt"
	"maps"

	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pod describes a sandbox that kubelet would request.
type Pod struct {
	// Name is the name of the pod. Namespace defaults to default.
	Name, Namespace string
	// UID defaults to uid-NAME.
	UID string
	// Attempt distinguishes the successive sandboxes of one pod.
	Attempt uint32
	// HostNetwork means that the pod uses the node's network namespace.
	HostNetwork bool
	// Labels are the labels of the pod.
	Labels map[string]string
	// Logs is the directory of its containers' logs. It is optional.
	Logs string
}

// Config returns the configuration of a pod that is sent to the runtime.
func (c *Containerd) Config(p Pod) *runtimev1.PodSandboxConfig {
	if p.Namespace == "" {
		p.Namespace = "default"
	}
	if p.UID == "" {
		p.UID = "uid-" + p.Name
	}
	labels := map[string]string{
		"io.kubernetes.pod.name":      p.Name,
		"io.kubernetes.pod.namespace": p.Namespace,
		"io.kubernetes.pod.uid":       p.UID,
	}
	maps.Copy(labels, p.Labels)
	network, hostname := runtimev1.NamespaceMode_POD, p.Name
	if p.HostNetwork {
		network, hostname = runtimev1.NamespaceMode_NODE, "" // the node's
	}
	return &runtimev1.PodSandboxConfig{
		Metadata: &runtimev1.PodSandboxMetadata{Name: p.Name, Namespace: p.Namespace, Uid: p.UID, Attempt: p.Attempt},
		Hostname: hostname,
		Labels:   labels,

		LogDirectory: p.Logs,
		Linux: &runtimev1.LinuxPodSandboxConfig{
			CgroupParent: c.Cgroup + "/pod" + p.UID,
			SecurityContext: &runtimev1.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimev1.NamespaceOption{Network: network},
			},
		},
	}
}

// RunPod starts the sandbox of a pod, and returns its ID.
func (c *Containerd) RunPod(ctx context.Context, p Pod) (id string, err error) {
	r, err := c.Runtime().RunPodSandbox(ctx, &runtimev1.RunPodSandboxRequest{Config: c.Config(p)})
	if err != nil {
		return "", fmt.Errorf("run sandbox of %s: %w", p.Name, err)
	}
	return r.GetPodSandboxId(), nil
}

// RunContainer starts a container in the sandbox of a pod, and returns its ID.
func (c *Containerd) RunContainer(ctx context.Context, sandbox string, p Pod, name string) (id string, err error) {
	return c.RunContainerAs(ctx, sandbox, p, &runtimev1.ContainerConfig{
		Metadata: &runtimev1.ContainerMetadata{Name: name},
		Image:    &runtimev1.ImageSpec{Image: Image},
		Linux:    &runtimev1.LinuxContainerConfig{},
	})
}

// RunContainerAs is like RunContainer, with the complete configuration that kubelet could send.
func (c *Containerd) RunContainerAs(ctx context.Context, sandbox string, p Pod, config *runtimev1.ContainerConfig) (id string, err error) {
	made, err := c.Runtime().CreateContainer(ctx, &runtimev1.CreateContainerRequest{
		PodSandboxId: sandbox, SandboxConfig: c.Config(p), Config: config,
	})
	if err != nil {
		return "", fmt.Errorf("create container %s of %s: %w", config.GetMetadata().GetName(), p.Name, err)
	}
	id = made.GetContainerId()
	if _, err := c.Runtime().StartContainer(ctx, &runtimev1.StartContainerRequest{ContainerId: id}); err != nil {
		return id, fmt.Errorf("start container %s of %s: %w", config.GetMetadata().GetName(), p.Name, err)
	}
	return id, nil
}

// StopPod stops a sandbox and removes its network. The sandbox stays listed.
func (c *Containerd) StopPod(ctx context.Context, id string) error {
	if _, err := c.Runtime().StopPodSandbox(ctx, &runtimev1.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("stop sandbox %s: %w", id, err)
	}
	return nil
}

// RemovePod removes a sandbox. If necessary, it stops it first.
func (c *Containerd) RemovePod(ctx context.Context, id string) error {
	if _, err := c.Runtime().RemovePodSandbox(ctx, &runtimev1.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return nil
}
