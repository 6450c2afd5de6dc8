package prometheus

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"image"
	"image/color"
	"image/png"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

// No test uses this file: `make update-pictures` renders the dashboards for docs/observability.md
// with it, and the page says so. Grafana is not in Debian, npm or the Go module proxy, and neither
// is another program that renders its dashboards. Charting libraries would replace drawLines only,
// not the layout, thresholds, units and tables.

// colors are Grafana's colours, by the names in our dashboards. Lines use those in palette.
var (
	colors  = map[string]string{"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c", "blue": "#5794f2", "text": "#ccccdc"}
	palette = []string{"#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#705da0", "#37872d", "#fade2a", "#447ebc", "#c15c17"}
)

const style = `body{margin:0;background:#111217;color:#ccccdc;font:14px Inter,"DejaVu Sans",sans-serif}
header{padding:12px 16px 4px;font-size:18px}header small{color:#8e8e9b;font-size:12px;margin-left:12px}
main{position:relative;margin:8px}
section{position:absolute;background:#181b1f;border:1px solid #25282d;border-radius:2px;box-sizing:border-box;overflow:hidden;display:flex;flex-direction:column}
h2{font-size:14px;font-weight:500;margin:7px 9px 4px}
.stat{flex:1;display:flex;align-items:center;justify-content:center;font-size:40px;font-weight:600}
table{border-collapse:collapse;width:100%;font-size:12px}th{color:#6e9fff;text-align:left;font-weight:500}
td,th{padding:5px 9px;border-bottom:1px solid #25282d;white-space:nowrap;overflow:hidden;text-overflow:ellipsis;max-width:430px}
.bar{display:inline-block;vertical-align:middle;height:12px;margin-right:6px}
.legend{font-size:11px;padding:0 9px 5px;line-height:16px;max-height:48px;overflow:hidden}.legend i{display:inline-block;width:12px;height:3px;margin:0 5px 3px 0}
.legend span{margin-right:12px}svg text{fill:#8e8e9b;font-size:11px}`

// The layout of a dashboard on the page: 24 columns, rows of 30 px, and gaps of 8 px.
const (
	pageWidth = 1384
	rowHeight = 30
	gap       = 8
)

// Render renders a dashboard as an HTML page, and returns its height.
func (s *Server) Render(ctx context.Context, d Dashboard, window string, last time.Duration) (page string, height int, err error) {
	var b strings.Builder
	fmt.Fprintf(&b, `<!doctype html><meta charset="utf-8"><style>%s</style><header>%s<small>rendered from the dashboard's JSON by the tests of ipwitness; Grafana's rendering is similar</small></header><main>`,
		style, html.EscapeString(d.Title))
	for _, p := range d.Panels {
		g := p.GridPos
		x, w := float64(pageWidth+gap)/24*float64(g.X), float64(pageWidth+gap)/24*float64(g.W)-gap
		y, h := (rowHeight+gap)*g.Y, (rowHeight+gap)*g.H-gap
		height = max(height, y+h)
		var answers [][]Series
		for _, q := range p.Targets {
			a, err := s.Answer(ctx, q, window, last)
			if err != nil {
				return "", 0, err
			}
			answers = append(answers, a)
		}
		fmt.Fprintf(&b, `<section style="left:%.0fpx;top:%dpx;width:%.0fpx;height:%dpx`, x, y, w, h)
		switch p.Type {
		case "stat":
			b.WriteString(p.drawStat(answers))
		case "table":
			b.WriteString(`">` + p.heading() + p.drawTable(answers))
		case "state-timeline":
			b.WriteString(`">` + p.heading() + p.drawTimeline(answers[0], w, float64(h)-50, last))
		default:
			b.WriteString(`">` + p.heading() + p.drawLines(answers, w, float64(h)-80, last))
		}
		b.WriteString(`</section>`)
	}
	b.WriteString(`</main>`)
	return b.String(), height + 60, nil
}

func (p Panel) heading() string { return "<h2>" + html.EscapeString(p.Title) + "</h2>" }

// unit returns the unit of a panel.
func (p Panel) unit() string { return fmt.Sprint(p.FieldConfig.Defaults["unit"]) }

// drawStat returns the rest of the style, and the number.
func (p Panel) drawStat(answers [][]Series) string {
	text, value := "No data", math.NaN()
	for _, one := range answers[0] {
		value = one.Points[len(one.Points)-1].Value
		text = human(value, p.unit())
	}
	return fmt.Sprintf(`;background:%s;color:#fff">%s<div class="stat">%s</div>`, step(p.FieldConfig.Defaults["thresholds"], value), p.heading(), text)
}

// step returns the colour of a value.
func step(thresholds any, value float64) string {
	var t struct {
		Steps []struct {
			Color string
			Value *float64
		}
	}
	raw, _ := json.Marshal(thresholds) // was decoded from JSON
	_ = json.Unmarshal(raw, &t)
	color := "text"
	for _, s := range t.Steps {
		if s.Value == nil || value >= *s.Value {
			color = s.Color
		}
	}
	return colors[color]
}

// drawTable joins the results of the queries by labels, and formats them according to the
// overrides.
func (p Panel) drawTable(answers [][]Series) string {
	type row map[string]string
	rows, values := map[string]row{}, map[string]map[string]float64{}
	for i, a := range answers {
		column := "Value"
		if len(answers) > 1 {
			column = "Value #" + p.Targets[i].RefID
		}
		for _, one := range a {
			key := fmt.Sprint(one.Labels)
			if rows[key] == nil {
				rows[key], values[key] = row(one.Labels), map[string]float64{}
			}
			values[key][column] = one.Points[len(one.Points)-1].Value
		}
	}
	organize := p.Transformations[len(p.Transformations)-1].Options
	names, index := organize["renameByName"].(map[string]any), organize["indexByName"].(map[string]any)
	order := make([]string, len(index))
	for name, at := range index {
		order[int(at.(float64))] = name
	}
	// Remove columns of labels that no series has.
	order = slices.DeleteFunc(order, func(name string) bool {
		if strings.HasPrefix(name, "Value") {
			return false
		}
		for _, r := range rows {
			if _, has := r[name]; has {
				return false
			}
		}
		return len(rows) > 0
	})
	var b strings.Builder
	b.WriteString("<table><tr>")
	for _, c := range order {
		fmt.Fprintf(&b, "<th>%s</th>", names[c])
	}
	b.WriteString("</tr>")
	keys := make([]string, 0, len(rows))
	for key := range rows {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int {
		for _, c := range order {
			if d := strings.Compare(rows[a][c], rows[b][c]); d != 0 {
				return d
			}
		}
		return 0
	})
	for _, key := range keys[:min(len(keys), 20)] {
		b.WriteString("<tr>")
		for _, c := range order {
			fmt.Fprintf(&b, "<td>%s</td>", p.cell(fmt.Sprint(names[c]), rows[key][c], values[key], c))
		}
		b.WriteString("</tr>")
	}
	b.WriteString("</table>")
	return b.String()
}

// cell returns the content of a cell.
func (p Panel) cell(column, text string, values map[string]float64, field string) string {
	value, number := values[field]
	unit, color, bar := p.unit(), "", ""
	var thresholds any
	inText := false // the colour of the thresholds is that of the text
	for _, o := range p.FieldConfig.Overrides {
		if o.Matcher.Options != column {
			continue
		}
		for _, property := range o.Properties {
			switch property.ID {
			case "unit":
				unit = fmt.Sprint(property.Value)
			case "links":
				color = "#6e9fff"
			case "thresholds":
				thresholds = property.Value
			case "custom.cellOptions":
				inText = property.Value.(map[string]any)["type"] == "color-text"
			case "mappings":
				for _, m := range property.Value.([]any) {
					of := text
					if number {
						of = human(value, "none")
					}
					if option, ok := m.(map[string]any)["options"].(map[string]any)[of].(map[string]any); ok {
						color = colors[fmt.Sprint(option["color"])]
						if shown, ok := option["text"].(string); ok {
							text, number = shown, false
						}
					}
				}
			}
		}
	}
	switch {
	case number && thresholds != nil && inText:
		color = step(thresholds, value)
	case thresholds != nil && !inText:
		bar = fmt.Sprintf(`<span class="bar" style="width:%.0fpx;background:%s"></span>`, 2+100*min(value, 1), step(thresholds, value))
	}
	if number {
		text = human(value, unit)
	}
	if color != "" {
		return fmt.Sprintf(`<span style="color:%s">%s</span>`, color, html.EscapeString(text))
	}
	return bar + html.EscapeString(text)
}

// drawLines draws lines over time with a legend.
func (p Panel) drawLines(answers [][]Series, width, height float64, last time.Duration) string {
	const left, right, top, bottom = 58, 12, 6, 20
	now, most, least := time.Now(), 0.0, 0.0
	var lines []Series
	var names []string
	for i, a := range answers {
		slices.SortFunc(a, func(a, b Series) int { return strings.Compare(fmt.Sprint(a.Labels), fmt.Sprint(b.Labels)) })
		for _, one := range a {
			lines, names = append(lines, one), append(names, legend(p.Targets[i].LegendFormat, one.Labels))
			for _, point := range one.Points {
				if !math.IsNaN(point.Value) {
					most, least = max(most, point.Value), min(least, point.Value)
				}
			}
		}
	}
	grid := nice((most - least) / 4)
	if p.unit() == "bytes" {
		grid = math.Exp2(math.Ceil(math.Log2(max(1, (most-least)/4))))
	}
	most, least = max(grid, math.Ceil(most/grid)*grid), math.Floor(least/grid)*grid
	x := func(at time.Time) float64 {
		return left + (width-left-right)*(1-now.Sub(at).Seconds()/last.Seconds())
	}
	y := func(v float64) float64 { return top + (height-top-bottom)*(most-v)/(most-least) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg width="%.0f" height="%.0f">`, width, height)
	for v := least; v <= most+grid/2; v += grid {
		fmt.Fprintf(&b, `<path d="M%d %.1fH%.0f" stroke="#25282d"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`, left, y(v), width-right, left-6, y(v)+4, human(v, p.unit()))
	}
	for i := range 5 {
		at := now.Add(-last * time.Duration(4-i) / 4)
		anchor := [...]string{"start", "middle", "middle", "middle", "end"}[i]
		fmt.Fprintf(&b, `<text x="%.1f" y="%.0f" text-anchor="%s">%s</text>`, x(at), height-4, anchor, at.UTC().Format(time.TimeOnly))
	}
	var legends strings.Builder
	for i, one := range lines {
		color := p.lineColor(names[i], palette[i%len(palette)])
		path, pen := "", "M"
		for _, point := range one.Points {
			if math.IsNaN(point.Value) {
				pen = "M"
				continue
			}
			path += fmt.Sprintf("%s%.1f %.1f", pen, x(point.At), y(point.Value))
			pen = "L"
		}
		fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.5"/>`, path, color)
		fmt.Fprintf(&legends, `<span><i style="background:%s"></i>%s</span>`, color, html.EscapeString(names[i]))
	}
	fmt.Fprintf(&b, `</svg><div class="legend">%s</div>`, legends.String())
	return b.String()
}

// lineColor returns the colour of a line: that of an override, or the usual one.
func (p Panel) lineColor(legend, usual string) string {
	for _, o := range p.FieldConfig.Overrides {
		pattern, _ := o.Matcher.Options.(string)
		if o.Matcher.ID != "byRegexp" || !regexp.MustCompile(strings.Trim(pattern, "/")).MatchString(legend) {
			continue
		}
		for _, property := range o.Properties {
			if property.ID == "color" {
				return colors[fmt.Sprint(property.Value.(map[string]any)["fixedColor"])]
			}
		}
	}
	return usual
}

// drawTimeline draws a bar for each series, in the colours of its values over time.
func (p Panel) drawTimeline(answers []Series, width, height float64, last time.Duration) string {
	const left, right = 150, 12
	slices.SortFunc(answers, func(a, b Series) int { return strings.Compare(fmt.Sprint(a.Labels), fmt.Sprint(b.Labels)) })
	states := p.FieldConfig.Defaults["mappings"].([]any)[0].(map[string]any)["options"].(map[string]any)
	now, tall := time.Now(), min(28, height/float64(max(1, len(answers))))
	x := func(at time.Time) float64 {
		return left + (width-left-right)*(1-now.Sub(at).Seconds()/last.Seconds())
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg width="%.0f" height="%.0f">`, width, height)
	for i, one := range answers {
		y := tall * float64(i)
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`, left-8, y+tall/2+4, html.EscapeString(legend(p.Targets[0].LegendFormat, one.Labels)))
		for n, point := range one.Points {
			state, ok := states[human(point.Value, "none")].(map[string]any)
			if !ok {
				continue
			}
			end := point.At.Add(last / 200)
			if n+1 < len(one.Points) {
				end = one.Points[n+1].At
			}
			fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`, x(point.At), y+tall*0.1, max(0, x(end)-x(point.At)), tall*0.8, colors[fmt.Sprint(state["color"])])
		}
	}
	b.WriteString(`</svg>`)
	return b.String()
}

// legend replaces the labels in a legend.
func legend(format string, labels map[string]string) string {
	for name, value := range labels {
		format = strings.ReplaceAll(format, "{{"+name+"}}", value)
	}
	return strings.TrimSpace(unknown.ReplaceAllString(format, ""))
}

// unknown matches a label that a series does not have.
var unknown = regexp.MustCompile(`\{\{\w+\}\}`)

// nice returns the next number of the form 1, 2 or 5 times a power of ten.
func nice(v float64) float64 {
	if v <= 0 {
		return 1
	}
	base := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 5, 10} {
		if v <= n*base*1.0001 {
			return n * base
		}
	}
	return v
}

// human formats a number with its unit, much like Grafana.
func human(v float64, unit string) string {
	number := func(v float64) string {
		return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3g", v), " "), ".")
	}
	scaled := func(step float64, suffixes ...string) string {
		i, of := 0, v
		for ; math.Abs(of) >= step && i < len(suffixes)-1; i++ {
			of /= step
		}
		if of == math.Trunc(of) || math.Abs(of) >= 100 {
			return fmt.Sprintf("%.0f%s", of, suffixes[i])
		}
		return number(of) + suffixes[i]
	}
	switch unit {
	case "s":
		for _, u := range []struct {
			size float64
			name string
		}{{1e-6, " µs"}, {1e-3, " ms"}, {1, " s"}} {
			if v == 0 {
				return "0 s"
			}
			if math.Abs(v) < u.size*1000 || u.size == 1 {
				return number(v/u.size) + u.name
			}
		}
	case "bytes":
		return scaled(1024, " B", " KiB", " MiB", " GiB")
	case "percentunit":
		return number(v*100) + "%"
	case "pps", "eps", "ops", "reqps":
		return scaled(1000, "", " K", " M") + map[string]string{"pps": " p/s", "eps": " evt/s", "ops": " ops/s", "reqps": " req/s"}[unit]
	case "dateTimeFromNow":
		switch ago := time.Since(time.UnixMilli(int64(v))); {
		case ago < 45*time.Second:
			return "a few seconds ago"
		case ago < 90*time.Second:
			return "a minute ago"
		default:
			return fmt.Sprintf("%.0f minutes ago", ago.Minutes())
		}
	}
	return scaled(1000, "", " K", " Mil")
}

// Shrink reduces a picture to its 256 most frequent colours.
func Shrink(file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	from, err := png.Decode(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	used, bounds := map[color.Color]int{}, from.Bounds()
	for y := range bounds.Dy() {
		for x := range bounds.Dx() {
			used[from.At(x, y)]++
		}
	}
	all := color.Palette(slices.SortedFunc(maps.Keys(used), func(a, b color.Color) int { return used[b] - used[a] }))
	few := all[:min(len(all), 256)]
	nearest := map[color.Color]uint8{}
	for _, c := range all {
		nearest[c] = uint8(few.Index(c))
	}
	to := image.NewPaletted(bounds, few)
	for y := range bounds.Dy() {
		for x := range bounds.Dx() {
			to.SetColorIndex(x, y, nearest[from.At(x, y)])
		}
	}
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, to); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o644)
}
