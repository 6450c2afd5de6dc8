package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// topicOf annotates a flag with its topic.
const topicOf = "topic"

// AllFlags is the flag that shows the flags of all topics in the help of a command.
const AllFlags = "all"

// Topic puts the flags that are added to cmd until the returned function runs into a topic: the help of the
// command names the topic only, and the topic has the flags.
func Topic(cmd *cobra.Command, name string) (end func()) {
	fs, before := cmd.Flags(), map[string]bool{}
	fs.VisitAll(func(f *pflag.Flag) { before[f.Name] = true })
	return func() {
		fs.VisitAll(func(f *pflag.Flag) {
			if !before[f.Name] {
				_ = fs.SetAnnotation(f.Name, topicOf, []string{name}) // fails only without such a flag
			}
		})
	}
}

func topic(f *pflag.Flag) string { return strings.Join(f.Annotations[topicOf], "") }

// AddTopics adds the topics of the flags of all commands to root, and to the help of these commands. topics are names,
// each followed by what the flags are for.
func AddTopics(root *cobra.Command, topics ...string) {
	commands := root.Commands()
	var pages []*cobra.Command
	for i := 0; i < len(topics); i += 2 {
		page := &cobra.Command{Use: topics[i], Short: topics[i+1]}
		all := pflag.NewFlagSet("", pflag.ContinueOnError)
		var of []string
		for _, c := range commands {
			has := false
			c.Flags().VisitAll(func(f *pflag.Flag) {
				if topic(f) != page.Use {
					return
				}
				if has = true; all.Lookup(f.Name) == nil {
					all.AddFlag(f)
				}
			})
			if has {
				of = append(of, c.Name())
			}
		}
		page.Long = fmt.Sprintf("%s\n\nFlags of %s:\n%s", page.Short, strings.Join(of, ", "), all.FlagUsages())
		pages = append(pages, page)
	}
	root.AddCommand(pages...)
	whole := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		if all := c.Flags().Lookup(AllFlags); all != nil && all.Value.String() == "true" {
			whole(c, args)
			return
		}
		more := map[string]bool{}
		hide := func(hidden bool) {
			c.Flags().VisitAll(func(f *pflag.Flag) {
				if name := topic(f); name != "" {
					more[name], f.Hidden = true, hidden
				}
			})
		}
		hide(true)
		whole(c, args)
		hide(false)
		title := "\nMore flags:\n"
		for _, page := range pages {
			if more[page.Use] {
				_, _ = fmt.Fprintf(c.OutOrStdout(), "%s  %s help %-10s  %s\n", title, root.DisplayName(), page.Use, page.Short)
				title = ""
			}
		}
	})
}
