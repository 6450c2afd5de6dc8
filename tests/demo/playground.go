package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/term"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

//go:embed pod
var podScript []byte

// welcome is what the playground prints before its shell.
const welcome = `This is a shell on node-1, a host of its own made of namespaces; ipwitness runs there.
  pod add NAME, pod delete NAME   starts or deletes a pod: the real plugins ptp and host-local give it an address
  ipwitness owners                lists the addresses
  exit                            removes the host and everything on it
docs/tutorial.md says what to try.
`

// playground opens a shell on a host with ipwitness and CNI plugins, and returns when it ends.
func playground(ctx context.Context) error {
	host, _, bin, err := node()
	if err != nil {
		return err
	}
	defer host.Close()
	// The directories of these programs come first: of ipwitness, of the plugins and cnitool, and of pod.
	plugins, err := netlab.Plugins()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(host.Path("/run/playground"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(host.Path("/run/playground/pod"), podScript, 0o755); err != nil {
		return err
	}
	program, err := host.Launch(ctx, host.Command(bin, "run", "--node", "node-1", "--data-dir", "/var/lib/ipwitness"))
	if err != nil {
		return err
	}
	shell := host.Command("sh", "-i")
	if bash, err := exec.LookPath("bash"); err == nil {
		shell = host.Command(bash, "--norc", "--noprofile", "-i")
	}
	if !term.IsTerminal(int(os.Stdin.Fd())) { // a script
		shell = host.Command("sh")
	}
	shell.Env = append(shell.Env, "PS1=node-1# ", "CNI_PATH="+plugins, "NETCONFPATH=/etc/cni/net.d",
		"PATH="+filepath.Dir(bin)+":"+plugins+":/run/playground:"+os.Getenv("PATH"))
	shell.Stdin, shell.Stdout, shell.Stderr = os.Stdin, os.Stdout, os.Stderr
	fmt.Print(welcome)
	if err := host.Start(shell); err != nil {
		return err
	}
	err = shell.Wait()
	if exit, is := errors.AsType[*exec.ExitError](err); is && exit.Exited() {
		err = nil // the exit code of the shell's last command
	}
	_, stopped := program.Stop()
	return errors.Join(err, stopped)
}
