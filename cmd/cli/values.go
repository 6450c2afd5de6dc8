package cli

import (
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ipwitness/ipwitness/secure"
)

// Value is a flag with one value. It rejects an invalid value when it is set, so that the error can
// name the source: command line, environment or file.
type Value[T any] struct {
	to    *T
	kind  string
	parse func(string) (T, error)
}

// NewValue returns a flag that writes its value to to. kind stands for the value in the help.
func NewValue[T any](to *T, kind string, parse func(string) (T, error)) Value[T] {
	return Value[T]{to, kind, parse}
}

// Type implements pflag.Value.
func (v Value[T]) Type() string { return v.kind }

// String implements pflag.Value.
func (v Value[T]) String() string {
	if v.to == nil { // pflag calls String on a zero value
		return ""
	}
	return fmt.Sprint(*v.to)
}

// Set implements pflag.Value.
func (v Value[T]) Set(s string) error {
	x, err := v.parse(s)
	if err != nil {
		return err
	}
	*v.to = x
	return nil
}

// List is a flag with several values. It is repeatable, and one string can contain several values
// with the separator between them.
type List[T any] struct {
	to        *[]T
	kind      string
	separator string
	parse     func(string) (T, error)
	// text contains the values as they were entered.
	text []string
}

// NewList returns a flag that appends its values to to. kind stands for a value in the help.
func NewList[T any](to *[]T, kind, separator string, parse func(string) (T, error)) *List[T] {
	return &List[T]{to: to, kind: kind, separator: separator, parse: parse}
}

// Type implements pflag.Value.
func (v *List[T]) Type() string { return v.kind }

// String implements pflag.Value.
func (v *List[T]) String() string { return strings.Join(v.text, v.separator) }

// GetSlice implements pflag.SliceValue.
func (v *List[T]) GetSlice() []string { return v.text }

// Set implements pflag.Value.
func (v *List[T]) Set(s string) error {
	for part := range strings.SplitSeq(s, v.separator) {
		if part = strings.TrimSpace(part); part != "" {
			if err := v.Append(part); err != nil {
				return err
			}
		}
	}
	return nil
}

// Append implements pflag.SliceValue.
func (v *List[T]) Append(s string) error {
	x, err := v.parse(s)
	if err != nil {
		return err
	}
	*v.to = append(*v.to, x)
	v.text = append(v.text, s)
	return nil
}

// Replace implements pflag.SliceValue.
func (v *List[T]) Replace(all []string) error {
	*v.to, v.text = nil, nil
	for _, s := range all {
		if err := v.Append(s); err != nil {
			return err
		}
	}
	return nil
}

// ChoiceFlag adds a flag with a fixed set of values and their completion. The first value is the
// default.
func ChoiceFlag[T ~string](cmd *cobra.Command, to *T, name, short, usage string, choices ...T) {
	var names []string
	for _, c := range choices {
		names = append(names, string(c))
	}
	*to = choices[0]
	cmd.Flags().VarP(Value[T]{to, strings.Join(names, "|"), func(s string) (T, error) {
		if !slices.Contains(choices, T(s)) {
			return "", fmt.Errorf("%q is not one of %s", s, strings.Join(names, ", "))
		}
		return T(s), nil
	}}, name, short, usage)
	CompleteFlag(cmd, name, names)
}

// CompleteFlag completes the values of a flag. More follows a value that ends with =.
func CompleteFlag(cmd *cobra.Command, name string, values []string) {
	CompleteFlagWith(cmd, name, func(_ *cobra.Command, _ []string, begun string) (found []cobra.Completion, _ cobra.ShellCompDirective) {
		directive := cobra.ShellCompDirectiveNoFileComp
		for _, v := range values {
			if strings.HasPrefix(v, begun) {
				found = append(found, v)
			}
		}
		if len(found) == 1 && strings.HasSuffix(found[0], "=") {
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		return found, directive
	})
}

// ListenFlag adds a flag for the address of a listener.
func ListenFlag(fs *pflag.FlagSet, to *string, name, byDefault, usage string) {
	*to = byDefault
	fs.Var(NewValue(to, "HOST:PORT", parseListen), name, usage)
}

func parseListen(s string) (string, error) {
	_, port, err := net.SplitHostPort(s)
	if _, wrong := strconv.ParseUint(port, 10, 16); err != nil || wrong != nil {
		return "", fmt.Errorf("%q is not HOST:PORT: write it like 127.0.0.1:9641 or, for all addresses of this host, :9641", s)
	}
	return s, nil
}

// globsFlag adds a flag for patterns of names.
func globsFlag(fs *pflag.FlagSet, to *[]string, name, usage string) {
	fs.Var(NewList(to, "GLOB,...", ",", ParseGlob), name, usage)
}

// ParseGlob accepts a pattern of names.
func ParseGlob(s string) (string, error) {
	if _, err := path.Match(s, ""); err != nil {
		return "", fmt.Errorf("%q is not a pattern: * matches any characters, ? matches one, [a-c] matches one of a set", s)
	}
	return s, nil
}

// CompleteFlagWith completes the value of a flag.
func CompleteFlagWith(cmd *cobra.Command, name string, complete cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(name, complete); err != nil {
		panic(err) // the flag does not exist, or is completed twice
	}
}

// CompleteNoFiles prevents that values of flags which are not files are completed as such.
func CompleteNoFiles(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		kind, _ := pflag.UnquoteUsage(f)
		if _, has := cmd.GetFlagCompletionFunc(f.Name); has || f.NoOptDefVal != "" || kind == "FILE" || kind == "DIR" {
			return
		}
		CompleteFlagWith(cmd, f.Name, cobra.NoFileCompletions)
	})
}

// ParseName accepts a name that is not empty and fits on a line, such as a host name or a name in
// Kubernetes.
func ParseName(s string) (string, error) {
	const most = 253
	if len(s) > most {
		return "", fmt.Errorf("the name has %d bytes, but the limit is %d", len(s), most)
	}
	if strings.TrimSpace(s) == "" {
		return "", errors.New("the name is empty")
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '/' || r == 0x7f }) {
		return "", fmt.Errorf("%q contains a space, a slash or a control character", s)
	}
	return s, nil
}

// ClientTLSFlags adds the TLS and token flags of a client of an aggregator.
func ClientTLSFlags(fs *pflag.FlagSet, files *secure.Files) {
	fs.StringVar(&files.CA, "tls-ca", "", "CA bundle `FILE` used to verify the aggregator's certificate, in PEM, or system")
	OwnCertFlags(fs, files, "client certificate `FILE`, in PEM")
	fs.StringVar(&files.Token, "token-file", "", "bearer token `FILE`; the token is sent only over TLS")
}

// OwnCertFlags adds the flags for a certificate and its key. usage describes the certificate.
func OwnCertFlags(fs *pflag.FlagSet, files *secure.Files, usage string) {
	fs.StringVar(&files.Cert, "tls-cert", "", usage)
	fs.StringVar(&files.Key, "tls-key", "", "private key `FILE` of --tls-cert, in PEM")
}

// ClientCAFlag adds the flag for the CA that signs the certificates of clients.
func ClientCAFlag(fs *pflag.FlagSet, files *secure.Files, usage string) {
	fs.StringVar(&files.ClientCA, "tls-client-ca", "", usage)
}
