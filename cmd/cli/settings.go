package cli

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// ApplySettings sets the flags that are not on the command line from the environment
// (IPWITNESS_HTTP_LISTEN for --http-listen) or, if there is no variable, from the file of --config.
func ApplySettings(cmd *cobra.Command, getenv func(string) string) error {
	// An empty variable counts as not set. Variables without a flag of that name are ignored:
	// Kubernetes sets variables such as IPWITNESS_SERVICE_HOST for a service named ipwitness.
	config := cmd.Flags().Lookup("config")
	if env := getenv(envName(config.Name)); env != "" && !config.Changed {
		if err := config.Value.Set(env); err != nil {
			return err
		}
	}
	known := map[string]bool{} // the flags of all commands, so that one file can serve all of them
	for _, c := range append(cmd.Root().Commands(), cmd.Root()) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if settable(f) {
				known[f.Name] = true
			}
		})
	}
	file, err := readSettings(config.Value.String(), known)
	if err != nil {
		return err
	}
	var errs []error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed || !settable(f) {
			return
		}
		name := envName(f.Name)
		if env := getenv(name); env != "" {
			if err := cmd.Flags().Set(f.Name, env); err != nil {
				errs = append(errs, valueError(name, f, env, errors.Unwrap(err)))
			}
		} else if node, ok := file[f.Name]; ok {
			if err := setFromFile(f, &node); err != nil {
				errs = append(errs, fmt.Errorf("%s, line %d: %w", config.Value, node.Line, err))
			}
		}
	})
	return errors.Join(errs...)
}

func envName(flag string) string {
	return "IPWITNESS_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

func settable(f *pflag.Flag) bool {
	_, only := f.Annotations[commandLine]
	return !only && f.Name != "help" && f.Name != "version" && f.Name != "config"
}

// commandLine annotates flags that are only taken from the command line.
const commandLine = "command-line"

// OnlyOnCommandLine excludes flags from variables and files, which also serve commands for which a flag
// of this name means something else.
func OnlyOnCommandLine(cmd *cobra.Command, names ...string) {
	for _, name := range names {
		if err := cmd.Flags().SetAnnotation(name, commandLine, nil); err != nil {
			panic(err) // the flag does not exist
		}
	}
}

// readSettings reads a file of flag names and values. It returns no settings if the name is empty.
func readSettings(name string, known map[string]bool) (map[string]yaml.Node, error) {
	if name == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the settings of --config: %w", err)
	}
	var settings map[string]yaml.Node
	if err := yaml.Unmarshal(raw, &settings); err != nil {
		return nil, fmt.Errorf("%s must have flag names with values, like http-listen: 127.0.0.1:9641: %w", name, err)
	}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if !known[key] {
			return nil, fmt.Errorf("%s, line %d: %q is not a flag name: keys are flag names without dashes, like http-listen", name, settings[key].Line, key)
		}
	}
	return settings, nil
}

// setFromFile sets a flag to a value or, if it accepts several, to a list.
func setFromFile(f *pflag.Flag, node *yaml.Node) error {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	many, isList := f.Value.(pflag.SliceValue)
	var err error
	switch {
	case node.Kind == yaml.ScalarNode && node.Tag == "!!null":
		return fmt.Errorf("%s has no value", f.Name)
	case node.Kind == yaml.ScalarNode:
		err = f.Value.Set(node.Value)
	case node.Kind == yaml.SequenceNode && isList:
		var values []string
		if node.Decode(&values) != nil {
			return fmt.Errorf("%s: expected a list of plain values", f.Name)
		}
		err = many.Replace(values)
	case node.Kind == yaml.SequenceNode:
		return fmt.Errorf("%s takes one value, not a list", f.Name)
	default:
		return fmt.Errorf("%s takes a value, not a map", f.Name)
	}
	if err != nil {
		return valueError(f.Name, f, node.Value, err)
	}
	f.Changed = true
	return nil
}
