package advice

import (
	"encoding/json"
	"reflect"
	"testing"
	"testing/fstest"
)

func TestTextsWithValues(t *testing.T) {
	values := map[string]any{
		"name": "a b", "id": "0123456789abcdef", "none": "", "no.node": "n1", "dash": "-x", "path": "/a b", "quote": `it's "x"`,
		"restart": func(then string) Advice {
			return Advice{Remedy: []Action{{Text: "Restart it: " + then + "."}}, Fixes: []Fix{{What: then}}}
		},
	}
	f := Filler{Texts: ReadTexts(fstest.MapFS{"texts.txt": {Data: []byte(`
# a comment
plain: {name} of {no.node} is {^name}, {unknown} and {.field} {print $1} { {x y} }
quoted: {sh name} {arg dash} {path dash} {literal {name}!} {json quote} {short id} {sh [{"op":"add","value":{json quote}}]} {sh plain {id}} {sh
other: <{plain}>
named: {path}, {path path}
sum:
  = one
  = [none] two
  = [!none] [name] three
steps:
  . It is {name}.
  - Run it.
    @ {no.node}
    $ [ -n "$x" ] && {
    $ [none] left out
    $ }
  - Choose.
    ? [none] never
    + more
  * Repair it.
    $ rm {sh name}
  ! Repair it by hand.
  + absent
more:
  ? it is
    + restart: {name}
`)}}, "*.txt"), Value: func(name string) any { return values[name] }}
	for key, want := range map[string]string{
		"plain":  "a b of n1 is A b, {unknown} and {.field} {print $1} { {x y} }",
		"quoted": `'a b' -- -x ./-x 'a b!' "it's \"x\"" 0123456789ab '[{"op":"add","value":"it'\''s \"x\""}]' 'plain 0123456789abcdef' {sh`,
		"other":  "<a b of n1 is A b, {unknown} and {.field} {print $1} { {x y} }>",
		"named":  "/a b, '/a b'", // a name may be that of a quotation
		"sum":    "one three", "missing": "",
	} {
		if got := f.Text(key); got != want {
			t.Errorf("%s: got %s, want %s", key, got, want)
		}
	}
	var got Advice
	if summary := f.Write(&got, "steps"); summary != "" {
		t.Errorf("got summary %q", summary)
	}
	want := Advice{
		Evidence: []string{"It is a b."},
		Remedy: []Action{
			{Text: "Run it.", Node: "n1", Command: "[ -n \"$x\" ] && {\n}"},
			{Text: "Choose.", Choice: []Alternative{{When: "it is", Actions: []Action{{Text: "Restart it: a b."}}}}},
		},
		Fixes: []Fix{{What: "a b"}, {What: "Repair it.", Command: "rm 'a b'"}, {What: "Repair it by hand.", Manual: true}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestTextsInJSON(t *testing.T) {
	for _, text := range []string{"", "net1", `"\`, "a\x00\t\n\x1fb", "é\u2028 ~"} {
		var got string
		if err := json.Unmarshal([]byte(jsonText(text)), &got); err != nil || got != text {
			t.Errorf("%q: got %s, which is %q (%v)", text, jsonText(text), got, err)
		}
	}
}
