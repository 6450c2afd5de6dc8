package prometheus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// The following types are the part of Grafana's classic dashboard JSON that our dashboards use.
// Grafana 9 and later accept it.

// Dashboard is a dashboard.
type Dashboard struct {
	UID           string   `json:"uid"`
	Title         string   `json:"title"`
	Description   string   `json:"description"`
	Tags          []string `json:"tags"`
	Editable      bool     `json:"editable"`
	GraphTooltip  int      `json:"graphTooltip"`
	Refresh       string   `json:"refresh"`
	SchemaVersion int      `json:"schemaVersion"`
	Time          span     `json:"time"`
	Timezone      string   `json:"timezone"`
	Links         []link   `json:"links"`
	Templating    struct {
		List []Variable `json:"list"`
	} `json:"templating"`
	Annotations struct {
		List []Annotation `json:"list"`
	} `json:"annotations"`
	Panels []Panel `json:"panels"`
}

// Annotation is a query whose results are marked in all graphs. Successive points are one region, from
// the first to the last.
type Annotation struct {
	Name        string      `json:"name"`
	Datasource  *datasource `json:"datasource"`
	Enable      bool        `json:"enable"`
	IconColor   string      `json:"iconColor"`
	Expr        string      `json:"expr"`
	Step        string      `json:"step"`
	TitleFormat string      `json:"titleFormat"`
	TextFormat  string      `json:"textFormat"`
	TagKeys     string      `json:"tagKeys"`
}

type span struct {
	From string `json:"from"`
	To   string `json:"to"`
}

type link struct {
	Title       string   `json:"title"`
	Type        string   `json:"type,omitempty"`
	URL         string   `json:"url,omitempty"`
	Tags        []string `json:"tags,omitempty"`
	AsDropdown  bool     `json:"asDropdown,omitempty"`
	IncludeVars bool     `json:"includeVars,omitempty"`
	KeepTime    bool     `json:"keepTime,omitempty"`
	TargetBlank bool     `json:"targetBlank,omitempty"`
}

// Variable is a choice at the top of a dashboard.
type Variable struct {
	Name       string      `json:"name"`
	Label      string      `json:"label"`
	Type       string      `json:"type"`
	Query      string      `json:"query"`
	Definition string      `json:"definition,omitempty"`
	Datasource *datasource `json:"datasource,omitempty"`
	Refresh    int         `json:"refresh"`
	Sort       int         `json:"sort,omitempty"`
	Multi      bool        `json:"multi,omitempty"`
	IncludeAll bool        `json:"includeAll,omitempty"`
	AllValue   string      `json:"allValue,omitempty"`
	Current    any         `json:"current"`
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// Panel is a panel.
type Panel struct {
	ID              int              `json:"id"`
	Type            string           `json:"type"`
	Title           string           `json:"title"`
	Description     string           `json:"description,omitempty"`
	Datasource      *datasource      `json:"datasource,omitempty"`
	GridPos         Grid             `json:"gridPos"`
	Targets         []Question       `json:"targets,omitempty"`
	FieldConfig     *fieldConfig     `json:"fieldConfig,omitempty"`
	Options         map[string]any   `json:"options,omitempty"`
	Transformations []transformation `json:"transformations,omitempty"`
	Panels          []Panel          `json:"panels,omitempty"`
}

// Grid is the position of a panel, in 24 columns.
type Grid struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

// Question is a query of a panel.
type Question struct {
	RefID        string      `json:"refId"`
	Datasource   *datasource `json:"datasource"`
	Expr         string      `json:"expr"`
	LegendFormat string      `json:"legendFormat"`
	Instant      bool        `json:"instant,omitempty"`
	Range        bool        `json:"range,omitempty"`
	Format       string      `json:"format,omitempty"`
}

type fieldConfig struct {
	Defaults  map[string]any `json:"defaults"`
	Overrides []override     `json:"overrides"`
}

type override struct {
	Matcher    property   `json:"matcher"`
	Properties []property `json:"properties"`
}

// property is {id, value}, or {id, options} for a matcher.
type property struct {
	ID      string `json:"id"`
	Options any    `json:"options,omitempty"`
	Value   any    `json:"value,omitempty"`
}

type transformation struct {
	ID      string         `json:"id"`
	Options map[string]any `json:"options"`
}

// chosen is the data source that the user chooses.
var chosen = &datasource{Type: "prometheus", UID: "${datasource}"}

// Expr returns a query with Grafana's variables replaced.
func Expr(expr string, window string) string {
	out := bytes.ReplaceAll([]byte(expr), []byte("$__rate_interval"), []byte(window))
	out = bytes.ReplaceAll(out, []byte("$__range"), []byte(window))
	for _, variable := range []string{"$cluster", "$node"} {
		out = bytes.ReplaceAll(out, []byte(variable), []byte(".*"))
	}
	return string(out)
}

// ReadDashboards reads the dashboards of the chart, by file name.
func ReadDashboards() (map[string]Dashboard, error) {
	files, err := Files()
	if err != nil {
		return nil, err
	}
	names, err := filepath.Glob(filepath.Join(files, "dashboards/*.json"))
	if err != nil {
		return nil, err
	}
	all := make(map[string]Dashboard)
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		decode := json.NewDecoder(bytes.NewReader(raw))
		decode.DisallowUnknownFields()
		var d Dashboard
		if err := decode.Decode(&d); err != nil {
			return nil, fmt.Errorf("parse %s: %w", name, err)
		}
		all[filepath.Base(name)] = d
	}
	return all, nil
}

// Answer evaluates a query of a panel, at the present time or over the last period.
func (s *Server) Answer(ctx context.Context, q Question, window string, last time.Duration) ([]Series, error) {
	expr := Expr(q.Expr, window)
	if q.Instant {
		return s.Query(ctx, expr)
	}
	now := time.Now()
	return s.QueryRange(ctx, expr, now.Add(-last), now, max(last/200, 100*time.Millisecond))
}

// WithoutData repeats all queries of all dashboards until each has data or ctx ends. It returns the
// queries without data as FILE, panel and expression, except those of panels with these titles. window replaces $__rate_interval.
func (s *Server) WithoutData(ctx context.Context, window string, except ...string) (missing []string, err error) {
	all, err := ReadDashboards()
	if err != nil {
		return nil, err
	}
	for file, d := range all {
		for _, a := range d.Annotations.List {
			if err := s.awaitData(ctx, Question{Expr: a.Expr, Range: true}, window); err != nil {
				missing = append(missing, fmt.Sprintf("%s: annotation %s: %s: %v", file, a.Name, a.Expr, err))
			}
		}
		for _, p := range d.Panels {
			for _, q := range p.Targets {
				if slices.Contains(except, p.Title) {
					continue
				}
				if err := s.awaitData(ctx, q, window); err != nil {
					missing = append(missing, fmt.Sprintf("%s: %s: %s: %v", file, p.Title, q.Expr, err))
				}
			}
		}
	}
	return missing, nil
}

// awaitData waits until the result of a query contains a number.
func (s *Server) awaitData(ctx context.Context, q Question, window string) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		series, err := s.Answer(context.WithoutCancel(ctx), q, window, time.Minute)
		if err != nil {
			return err
		}
		for _, one := range series {
			if slices.ContainsFunc(one.Points, func(p Point) bool { return !math.IsNaN(p.Value) }) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return errors.New("no data")
		case <-tick.C:
		}
	}
}
