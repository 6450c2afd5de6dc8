package containerd

import (
	"context"
	"fmt"
	"maps"

	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pod is a sandbox as kubelet would ask for it.
type Pod struct {
	// Name, and Namespace, which is default where it is empty.
	Name, Namespace string
	// UID is uid-NAME where it is empty.
	UID string
	// Attempt counts the sandboxes of one pod.
	Attempt uint32
	// HostNetwork says that it has no network namespace of its own.
	HostNetwork bool
	// Labels are the pod's.
	Labels map[string]string
	// Logs is the directory of its containers' logs, if there is one.
	Logs string
}

// Config is what is asked of the runtime for a pod.
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
		network, hostname = runtimev1.NamespaceMode_NODE, "" // it has the node's
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

// RunPod starts the sandbox of a pod, and gives its id.
func (c *Containerd) RunPod(ctx context.Context, p Pod) (id string, err error) {
	r, err := c.Runtime().RunPodSandbox(ctx, &runtimev1.RunPodSandboxRequest{Config: c.Config(p)})
	if err != nil {
		return "", fmt.Errorf("run sandbox of %s: %w", p.Name, err)
	}
	return r.GetPodSandboxId(), nil
}

// RunContainer starts a container in the sandbox of a pod, and gives its id.
func (c *Containerd) RunContainer(ctx context.Context, sandbox string, p Pod, name string) (id string, err error) {
	return c.RunContainerAs(ctx, sandbox, p, &runtimev1.ContainerConfig{
		Metadata: &runtimev1.ContainerMetadata{Name: name},
		Image:    &runtimev1.ImageSpec{Image: Image},
		Linux:    &runtimev1.LinuxContainerConfig{},
	})
}

// RunContainerAs does the same with all that kubelet may say of a container.
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

// StopPod ends a sandbox and takes its network away. It stays listed.
func (c *Containerd) StopPod(ctx context.Context, id string) error {
	if _, err := c.Runtime().StopPodSandbox(ctx, &runtimev1.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("stop sandbox %s: %w", id, err)
	}
	return nil
}

// RemovePod ends a sandbox, where that is not done yet, and forgets it.
func (c *Containerd) RemovePod(ctx context.Context, id string) error {
	if _, err := c.Runtime().RemovePodSandbox(ctx, &runtimev1.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return nil
}
