package top

import "slices"

// A binding is a key, or several, and what they do.
type binding struct {
	keys  []string
	name  string // as shown to people
	help  string
	short string // for the last line of the screen
}

// The keys. Each list of keys is in one place, and the help is made of it.
var (
	keyQuit    = binding{[]string{"q", "ctrl+c"}, "q", "quit", "quit"}
	keyHelp    = binding{[]string{"?", "f1"}, "?", "help", "help"}
	keySuspend = binding{[]string{"ctrl+z"}, "Ctrl-Z", "suspend", ""}
	keyRedraw  = binding{[]string{"ctrl+l"}, "Ctrl-L", "draw the screen again", ""}
	keyBack    = binding{[]string{"esc", "backspace"}, "Esc", "go back, or remove the filter", "back"}
	keyOpen    = binding{[]string{"enter"}, "Enter", "open the selected item", "open"}
	keyExplain = binding{[]string{"x"}, "x", "explain the address", "explain"}
	keyFilter  = binding{[]string{"/"}, "/", "filter", "filter"}
	keySort    = binding{[]string{"s"}, "s", "sort by the next column", "sort"}
	keyReverse = binding{[]string{"r"}, "r", "reverse the order", ""}
	keyTabs    = binding{[]string{"1", "2", "3", "4"}, "1 to 4", "conflicts, findings, owners, nodes", ""}
	keyNext    = binding{[]string{"tab", "right", "l"}, "Tab", "next list", "next list"}
	keyPrior   = binding{[]string{"shift+tab", "left", "h"}, "Shift-Tab", "previous list", ""}
	keyUp      = binding{[]string{"up", "k"}, "Up, k", "one line up", ""}
	keyDown    = binding{[]string{"down", "j"}, "Down, j", "one line down", ""}
	keyPageUp  = binding{[]string{"pgup", "ctrl+b"}, "PgUp", "one screen up", ""}
	keyPage    = binding{[]string{"pgdown", "space", "ctrl+f"}, "PgDn", "one screen down", ""}
	keyHome    = binding{[]string{"home", "g"}, "Home, g", "first item", ""}
	keyEnd     = binding{[]string{"end", "G"}, "End, G", "last item", ""}
)

// is reports whether a key belongs to the binding.
func (b binding) is(key string) bool { return slices.Contains(b.keys, key) }

// helpKeys lists the keys in the order of the help.
func helpKeys() []binding {
	return []binding{
		keyOpen, keyExplain, keyBack, keyFilter, keySort, keyReverse, keyTabs, keyNext, keyPrior,
		keyUp, keyDown, keyPageUp, keyPage, keyHome, keyEnd, keyRedraw, keySuspend, keyHelp, keyQuit,
	}
}
