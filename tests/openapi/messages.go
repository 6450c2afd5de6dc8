package main

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// messages returns the messages of the API by the names of their schemas.
func messages() map[string]protoreflect.MessageDescriptor {
	all := map[string]protoreflect.MessageDescriptor{"Status": (&status.Status{}).ProtoReflect().Descriptor()}
	var add func(prefix string, some protoreflect.MessageDescriptors)
	add = func(prefix string, some protoreflect.MessageDescriptors) {
		for i := range some.Len() {
			m := some.Get(i)
			all[prefix+string(m.Name())] = m
			add(prefix+string(m.Name()), m.Messages())
		}
	}
	add("", pb.File_ipwitness_v1_api_proto.Messages())
	add("", pb.File_ipwitness_v1_types_proto.Messages())
	return all
}

// isRequest reports whether a schema is that of a request, whose fields may all be omitted.
func isRequest(name string) bool {
	return strings.HasSuffix(name, "Request") || strings.HasSuffix(name, "Body") || strings.HasSuffix(name, "Question")
}

// alwaysPresent returns the fields that the JSON of a message always has: all but messages and optional
// values that are not set.
func alwaysPresent(of protoreflect.MessageDescriptor) (names []string) {
	for i := range of.Fields().Len() {
		if f := of.Fields().Get(i); !f.HasPresence() {
			names = append(names, f.JSONName())
		}
	}
	slices.Sort(names)
	return names
}

// reference is a reference to a schema in JSON.
var reference = regexp.MustCompile(`"#/components/schemas/([^"]+)"`)

// reachable returns the names of the schemas that the paths and responses refer to, directly or not. The
// others belong to the protocol of the agents.
func reachable(doc *openapi3.T) map[string]bool {
	found := make(map[string]bool)
	var visit func(part any)
	visit = func(part any) {
		raw, err := json.Marshal(part)
		if err != nil {
			return // the whole document is marshalled later
		}
		for _, match := range reference.FindAllSubmatch(raw, -1) {
			if name := string(match[1]); !found[name] {
				found[name] = true
				visit(doc.Components.Schemas[name])
			}
		}
	}
	visit(doc.Paths)
	visit(doc.Components.Responses)
	return found
}

// describeReferences adds the descriptions of fields that are messages. OpenAPI 2.0 does not allow
// anything beside a reference, so the conversion drops them.
func describeReferences(doc *openapi3.T, old []byte) error {
	var before struct {
		Definitions map[string]struct {
			Properties map[string]struct{ Description string }
		}
	}
	if err := json.Unmarshal(old, &before); err != nil {
		return err
	}
	for name, schema := range doc.Components.Schemas {
		for field, of := range schema.Value.Properties {
			if text := before.Definitions[name].Properties[field].Description; of.Ref != "" && text != "" {
				of.Extensions = map[string]any{"description": oneLine(text)}
			}
		}
	}
	return nil
}
