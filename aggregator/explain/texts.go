package explain

import (
	"embed"
	"net/netip"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

//go:embed text
var files embed.FS

// texts are the texts of all files in folder text. {name} is also a word of the owner (ownerWords).
var texts = readTexts()

func readTexts() advice.Texts {
	var all []string
	names, _ := files.ReadDir("text") // the files are in the program
	for _, name := range names {
		data, _ := files.ReadFile("text/" + name.Name())
		all = append(all, string(data))
	}
	return advice.ReadTexts(all...)
}

// has reports whether there is a text with a key.
func has(key string) bool { return texts[key] != nil }

// A source gives the values of names; nil for names that it does not have.
type source func(name string) any

// A scope has the values that a text may name: sources, owners, and names that are each followed by
// their values.
type scope []any

// value returns the value of a name. {was.node} is the node of the owner that the scope has as was.
func (s scope) value(name string) any {
	for i := 0; i < len(s); i++ {
		switch from := s[i].(type) {
		case source:
			if v := from(name); v != nil {
				return printed(v)
			}
		case *verdict.Owner:
			if word := ownerWords[name]; word != nil {
				return word(from)
			}
		case string:
			i++
			if from == name {
				return printed(s[i])
			}
			if o, ok := s[i].(*verdict.Owner); ok && strings.HasPrefix(name, from+".") {
				return ownerWords[name[len(from)+1:]](o)
			}
		}
	}
	return nil
}

// printed returns a value in the form of texts.
func printed(v any) any {
	switch v := v.(type) {
	case verdict.Stamp:
		return stampText(v)
	case []string:
		return list(v)
	case []netip.Addr:
		return list(each(v, addrText))
	}
	return v
}

func (s scope) filler() advice.Filler { return advice.Filler{Texts: texts, Value: s.value} }

// text returns the text of a key.
func (s scope) text(key string) string { return s.filler().Text(key) }

// Text returns the text of a key. Names are followed by their values.
func Text(key string, values ...any) string { return scope(values).text(key) }

// steps returns the actions of a key.
func (s scope) steps(key string) []advice.Action { return s.filler().Steps(key) }

// write adds the text of a key.
func (s scope) write(t *FindingText, key string) {
	t.Summary = strings.TrimPrefix(t.Summary+" "+s.filler().Write(&t.Advice, key), " ")
}
