// Command openapi writes proto/ipwitness/v1/openapi.json, the description of the REST interface in
// OpenAPI 3.1. It converts the description in OpenAPI 2.0 that the generator of grpc-gateway makes, and
// adds what that generator does not know: which fields are always present, the errors, how callers
// authenticate, and the two forms of watches.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi2"
	"github.com/getkin/kin-openapi/openapi2conv"
	"github.com/getkin/kin-openapi/openapi3"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: openapi SWAGGER OPENAPI")
		os.Exit(1)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "openapi:", err)
		os.Exit(1)
	}
}

// write converts the description in one file to the other file.
func write(from, to string) error {
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	raw = plainNames(raw)
	var old openapi2.T
	if err := json.Unmarshal(raw, &old); err != nil {
		return fmt.Errorf("read %s: %w", from, err)
	}
	doc, err := openapi2conv.ToV3(&old)
	if err != nil {
		return fmt.Errorf("convert %s: %w", from, err)
	}
	if err := errors.Join(complete(doc), describeReferences(doc, raw)); err != nil {
		return err
	}
	out, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	again, err := openapi3.NewLoader().LoadFromData(out)
	if err != nil {
		return fmt.Errorf("read what was made of %s: %w", from, err)
	}
	if err := again.Validate(context.Background()); err != nil {
		return fmt.Errorf("validate what was made of %s: %w", from, err)
	}
	return os.WriteFile(to, append(out, '\n'), 0o644)
}

// plainNames removes the version from the names of schemas, and packages that are not ours.
func plainNames(description []byte) []byte {
	return []byte(strings.NewReplacer(
		`"#/definitions/v1`, `"#/definitions/`, `"#/definitions/rpc`, `"#/definitions/`, `"#/definitions/protobuf`, `"#/definitions/`,
		`    "v1`, `    "`, `    "rpcStatus": {`, `    "Status": {`, `    "protobufAny": {`, `    "Any": {`, `    "protobufNullValue": {`, `    "NullValue": {`,
		`"$ref": "#/definitions/WitnessService`, `"$ref": "#/definitions/`, `    "WitnessServiceAcknowledge`, `    "Acknowledge`,
	).Replace(string(description)))
}

// complete adds to a description what its conversion does not know.
func complete(doc *openapi3.T) error {
	doc.OpenAPI = "3.1.1"
	doc.Info.Description += "\n\nParameters can also be written in snake_case (page_size), and the words of enumerations in lower case. " +
		"Unknown parameters are refused. Each path that has GET also has HEAD and OPTIONS."
	doc.Servers = openapi3.Servers{{URL: "/", Description: "The aggregator that serves this description."}}
	doc.Tags = nil
	doc.Security = openapi3.SecurityRequirements{{"bearer": {}}, {"certificate": {}}, {}}
	doc.Components.SecuritySchemes = openapi3.SecuritySchemes{
		"bearer": {Value: openapi3.NewSecurityScheme().WithType("http").WithScheme("bearer").WithDescription(
			"A token of the aggregator's --tokens file, or a token of Kubernetes.")},
		"certificate": {Value: openapi3.NewSecurityScheme().WithType("mutualTLS").WithDescription(
			"A client certificate that is signed by the CA of the aggregator's --tls-client-ca.")},
	}
	doc.Components.Responses = failures()
	for path, item := range doc.Paths.Map() {
		for verb, op := range item.Operations() {
			op.Tags = nil
			op.OperationID = strings.TrimPrefix(op.OperationID, "WitnessService_")
			summarize(op)
			for _, p := range op.Parameters {
				parameter(op.OperationID, p.Value)
			}
			if err := answers(path, verb, op); err != nil {
				return err
			}
			if body := op.RequestBody; body != nil {
				body.Value.Extensions, body.Value.Required = nil, op.OperationID != "Backup"
			}
		}
	}
	messages := messages()
	reached := reachable(doc)
	for name := range doc.Components.Schemas {
		if !reached[name] {
			delete(doc.Components.Schemas, name)
		}
	}
	for name, schema := range doc.Components.Schemas {
		if of := messages[name]; of != nil && !isRequest(name) {
			schema.Value.Required = alwaysPresent(of)
		}
		tidy(schema.Value)
	}
	return nil
}

// summarize makes a summary of the first sentence of a comment, without the name of the method.
func summarize(op *openapi3.Operation) {
	text := oneLine(op.Summary)
	if op.Description != "" {
		text += " " + oneLine(op.Description)
	}
	text = strings.TrimPrefix(text, op.OperationID+" ")
	text = strings.ToUpper(text[:1]) + text[1:]
	op.Summary, _, _ = strings.Cut(text, ". ")
	op.Summary = strings.TrimSuffix(op.Summary, ".")
	op.Description = text
}

// oneLine joins the lines of a comment.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// parameter says which values a parameter takes.
func parameter(operation string, p *openapi3.Parameter) {
	p.Description, _, _ = strings.Cut(p.Description, "\n\n") // the rest describes the words of an enumeration
	p.Description = oneLine(p.Description)
	s := p.Schema.Value
	s.Default = nil
	switch {
	case operation == "Explain" && p.Name == "address":
		p.Required = true
	case p.Name == "cause":
		s.WithEnum(values(verdict.Causes())...)
	case p.Name == "kind" && len(s.Enum) == 0:
		s.WithEnum(values(verdict.FindingKinds())...)
	}
	s.Enum = slices.DeleteFunc(s.Enum, func(word any) bool {
		return word == "UNSPECIFIED" || word == "GONE" && strings.HasSuffix(operation, "Owners")
	})
	if s.Type.Is("integer") {
		s.Format, s.Min, s.Max = "", new(0.0), new(float64(1<<32-1))
	}
}

// values returns texts as values of an enumeration.
func values(texts []string) (all []any) {
	for _, text := range texts {
		all = append(all, text)
	}
	return all
}

// answers says how an operation answers.
func answers(path, verb string, op *openapi3.Operation) error {
	ok := op.Responses.Value("200").Value
	content := ok.Content["application/json"]
	if content == nil {
		return fmt.Errorf("%s %s has no response in JSON", verb, path)
	}
	stream := strings.Contains(*ok.Description, "(streaming responses)")
	op.Responses = openapi3.NewResponses()
	op.Responses.Delete("default")
	op.Responses.Set("200", &openapi3.ResponseRef{Value: openapi3.NewResponse().WithDescription("The answer.").WithContent(ok.Content)})
	if stream {
		ok.Content = openapi3.Content{"application/x-ndjson": {Schema: line(content.Schema.Value)}}
		op.Responses.Value("200").Value.WithDescription("A stream. Each line is a JSON document of this schema.").WithContent(ok.Content)
	}
	if strings.HasPrefix(op.OperationID, "Watch") {
		op.Responses.Value("200").Value.WithDescription(
			"A stream that does not end. As application/x-ndjson, each line is a JSON document of this schema. " +
				"As text/event-stream, each event has its type as event, and the content of result as data.")
		ok.Content["text/event-stream"] = &openapi3.MediaType{Schema: openapi3.NewStringSchema().NewRef()}
		op.AddParameter(&openapi3.Parameter{
			Name: "Last-Event-ID", In: "header", Schema: openapi3.NewStringSchema().NewRef(),
			Description: "The id of the last event that a browser has received, which replaces resumeToken. Only for text/event-stream.",
		})
	}
	codes := []string{"400", "401", "403", "429", "500", "503"}
	if strings.Contains(path, "{") {
		codes = append(codes, "404")
	}
	if op.OperationID == "Backup" {
		codes = append(codes, "409")
	}
	for _, code := range codes {
		op.Responses.Set(code, &openapi3.ResponseRef{Ref: "#/components/responses/" + failureNames[code]})
	}
	op.Responses.Set("default", &openapi3.ResponseRef{Ref: "#/components/responses/Failure"})
	return nil
}

// line returns the schema of a line of a stream: a message, or the error that ends the stream.
func line(both *openapi3.Schema) *openapi3.SchemaRef {
	only := func(field, text string) *openapi3.SchemaRef {
		s := openapi3.NewObjectSchema().WithPropertyRef(field, openapi3.NewSchemaRef(both.Properties[field].Ref, nil)).WithRequired([]string{field})
		s.Description = text
		return s.NewRef()
	}
	return (&openapi3.Schema{OneOf: openapi3.SchemaRefs{
		only("result", "A message."), only("error", "The error that ends the stream."),
	}}).NewRef()
}

// failureNames has the names of the responses with errors.
var failureNames = map[string]string{
	"400": "Invalid", "401": "Unauthenticated", "403": "Forbidden", "404": "NotFound", "409": "Conflicting", "429": "TooMany",
	"500": "Internal", "503": "Unavailable",
}

// failures returns the responses with errors.
func failures() openapi3.ResponseBodies {
	all := openapi3.ResponseBodies{}
	for name, text := range map[string]string{
		"Invalid":         "The request is invalid: the message says what is expected. A parameter that the call does not have is invalid, too.",
		"Unauthenticated": "The call needs a credential, or the credential is not valid.",
		"Forbidden":       "The caller may not do this, or the request comes from a page of another site.",
		"NotFound":        "There is no such item.",
		"Conflicting":     "Another call is in progress that excludes this one.",
		"TooMany":         "The caller exceeds a limit, or the data directory is full.",
		"Internal":        "The aggregator has a bug.",
		"Unavailable":     "The aggregator, or something that it needs, is not available: try again.",
		"Failure":         "Any other error.",
	} {
		r := openapi3.NewResponse().WithDescription(text).WithContent(openapi3.Content{
			"application/json": {Schema: openapi3.NewSchemaRef("#/components/schemas/Status", nil)},
		})
		if name == "Unauthenticated" {
			r.Headers = openapi3.Headers{"WWW-Authenticate": {Value: &openapi3.Header{Parameter: openapi3.Parameter{
				Description: "Bearer, with error=\"invalid_token\" if a token was presented (RFC 6750).",
				Required:    true, Schema: openapi3.NewStringSchema().NewRef(),
			}}}}
		}
		all[name] = &openapi3.ResponseRef{Value: r}
	}
	return all
}

// tidy joins the lines of the descriptions of a schema.
func tidy(s *openapi3.Schema) {
	s.Title, s.Description, s.Default = "", oneLine(s.Description), nil
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		if p := s.Properties[name]; p.Ref == "" && p.Value != nil {
			tidy(p.Value)
		}
	}
}
