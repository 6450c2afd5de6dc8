package form_test

import (
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/proto/form"
)

func TestForms(t *testing.T) {
	long := strings.Repeat("x", 300)
	for name, test := range map[string]struct {
		form form.Form
		// want maps each string to its corrected version.
		want map[string]string
	}{
		"digits": {form.Digits, map[string]string{
			"4026531840": "4026531840", "": "", "1 /x; reboot #": "", "$(reboot)": "", "١": "", strings.Repeat("1", 21): "",
		}},
		"id": {form.ID, map[string]string{
			"0125ec2f-b64a-4868-8f5b-94b56cbab864": "0125ec2f-b64a-4868-8f5b-94b56cbab864", "-f": "", "a b": "", "a\n": "", "$(x)": "",
		}},
		"label":     {form.Label, map[string]string{"kube-system": "kube-system", "-n": "\uFFFD-n", "a.b": "a\uFFFDb", "A": "\uFFFD", "a\x1b": "a\uFFFD"}},
		"subdomain": {form.Subdomain, map[string]string{"web-0.x": "web-0.x", "--all": "\uFFFD--all", "a..b": "\uFFFDa..b", "$(x)": "\uFFFD\uFFFDx\uFFFD"}},
		"node":      {form.Node, map[string]string{"My_host.example": "My_host.example", "a@b": "a\uFFFDb", "-x": "\uFFFD-x", long: long[:250] + "\uFFFD"}},
		"interface": {form.Interface, map[string]string{
			"eth0": "eth0", "veth12345678901": "veth12345678901", "a b": "a\uFFFDb", "a/b": "a\uFFFDb", "..": "\uFFFD..", "$(:>c)": "$(\uFFFD>c)",
			"a\u202eb": "a\uFFFDb", "a\x9bb": "a\uFFFDb", "veth123456789012": "veth12345678\uFFFD", "ü": "ü",
		}},
		"name": {form.Name, map[string]string{
			"my net; ns": "my net; ns", "a\nb": "a\uFFFDb", "a\r\x1b[2J": "a\uFFFD\uFFFD[2J", long: long[:250] + "\uFFFD",
			strings.Repeat("ü", 127): strings.Repeat("ü", 125) + "\uFFFD", "a\xff": "a\uFFFD", "a\u200bb": "a\uFFFDb",
		}},
		"path":    {form.Path, map[string]string{"/var/lib/cni": "/var/lib/cni", "-rf": "", "/a\nb": ""}},
		"address": {form.Address, map[string]string{"10.0.0.1": "10.0.0.1", "fe80::1": "fe80::1", "fe80::1%$(x)": "", "x": ""}},
		"process": {form.Process, map[string]string{
			"nginx (4711)": "nginx (4711)", "a (b) (1, ended)": "a (b) (1, ended)", "x": "\uFFFDx", "x (1/../2)": "\uFFFDx (1/../2)", "x\x1b (1)": "x\uFFFD (1)",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for text, want := range test.want {
				got := test.form.Correct(text)
				if got != want {
					t.Errorf("got %q of %q, want %q", got, text, want)
				}
				if (got == text) != test.form.Has(text) {
					t.Errorf("got %q changed to %q, though it has the form: %v", text, got, test.form.Has(text))
				}
				if again := test.form.Correct(got); again != got {
					t.Errorf("got %q corrected to %q and then to %q", text, got, again)
				}
			}
		})
	}
}

func FuzzCorrect(f *testing.F) {
	for _, s := range []string{"", "eth0", "-x", "a\x1b[0m", "\xff\xfe", "\u202e", strings.Repeat("\xff", 400), strings.Repeat("ü", 200)} {
		f.Add(s)
	}
	forms := map[string]form.Form{
		"digits": form.Digits, "id": form.ID, "node": form.Node, "label": form.Label, "subdomain": form.Subdomain, "interface": form.Interface,
		"link": form.Link, "name": form.Name, "path": form.Path, "address": form.Address, "process": form.Process, "text": form.Text(7), "word": form.Word(9),
	}
	f.Fuzz(func(t *testing.T, s string) {
		for name, of := range forms {
			got := of.Correct(s)
			if !advice.Printable(got) || len(got) > 1024 || of.Correct(got) != got {
				t.Errorf("%s: got %q of %q, want a printable text that stays unchanged", name, got, s)
			}
			if of.Has(s) && got != s {
				t.Errorf("%s: got %q of %q, which has the form", name, got, s)
			}
		}
	})
}
