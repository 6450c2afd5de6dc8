// What happened to an address, on a timeline: a lane for each owner, and one for conflicts.
import { duration, full, ms, short } from '../time'
import { useNow } from './basics'
import { ownerKey, ownerName, scopeText, title } from '../words'
import type { Conflict, Event as Change, Gap, Owner } from '../types'

interface Span {
  from: number
  until: number | undefined
  label: string
  tone: string
}

interface Lane {
  name: string
  spans: Span[]
}

/** Makes lanes of the recorded events, which are ordered by time. */
export function lanesOf(events: Change[]): Lane[] {
  const lanes = new Map<string, Lane>()
  const oneScope = new Set(events.flatMap((e) => (e.conflict ? [scopeText(e.conflict.scope)] : []))).size < 2
  const put = (key: string, name: string, at: number, begins: boolean, label: string, tone: string) => {
    const lane = lanes.get(key) ?? { name, spans: [] }
    lanes.set(key, lane)
    lane.name = name
    const last = lane.spans.at(-1)
    if (last && last.until === undefined) {
      if (begins && last.tone === tone) return
      last.until = at
    }
    if (begins) lane.spans.push({ from: at, until: undefined, label, tone })
  }
  for (const e of events) {
    const at = ms(e.time)
    if (e.conflict) putConflict(put, e.conflict, at, oneScope)
    if (e.owner) put(`owner ${ownerKey(e.owner)}`, ownerLane(e.owner), at, e.type !== 'REMOVED', ownerName(e.owner), e.owner.state === 'LIVE' ? 'owner' : 'quiet')
    if (e.finding) put(`finding ${e.finding.kind}`, title(e.finding.kind), at, e.type !== 'REMOVED', e.finding.kind, 'warn')
  }
  return [...lanes.entries()].sort(([a], [b]) => rank(a) - rank(b)).map(([, lane]) => lane)
}

const rank = (key: string) => (key.startsWith('conflict') ? 0 : key.startsWith('owner') ? 1 : 2)
const ownerLane = (o: Owner) => `${ownerName(o)}${o.node ? ` · ${o.node}` : ''}`

function putConflict(put: (key: string, name: string, at: number, begins: boolean, label: string, tone: string) => void, c: Conflict, at: number, oneScope: boolean) {
  put(`conflict ${c.id}`, oneScope ? 'Held twice' : `Held twice · ${scopeText(c.scope)}`, at, c.state !== 'RESOLVED', c.state.toLowerCase(), c.state === 'CONFIRMED' ? 'bad' : 'warn')
}

const width = 1000, laneHeight = 22

/** known is the time up to which the events are complete; undefined means now. */
export function History({ events, gaps, from, known, at, onPick }: { events: Change[]; gaps: Gap[]; from: number; known: number | undefined; at: number | undefined; onPick: (at: number | undefined) => void }) {
  const until = useNow()
  const span = Math.max(until - from, 1000)
  const x = (t: number) => Math.max(0, Math.min(width, ((t - from) / span) * width))
  const lanes = lanesOf(events)
  const open = known === undefined ? 'now' : `at least ${full(known)}`
  const ticks = [0, 0.25, 0.5, 0.75]
  const slide = (event: { currentTarget: HTMLInputElement }) => {
    const value = Number(event.currentTarget.value)
    onPick(value >= width ? undefined : Math.round(from + (value / width) * span))
  }
  return (
    <div class="history">
      {lanes.slice(0, 12).map((lane) => (
        <div class="lane">
          <span class="lane-name" title={lane.name}>{lane.name}</span>
          <svg viewBox={`0 0 ${width} ${laneHeight}`} preserveAspectRatio="none" role="img" aria-label={`${lane.name}: ${lane.spans.map((s) => `${s.label} from ${full(s.from)} to ${s.until ? full(s.until) : open}`).join('; ')}`}>
            {gaps.map((g) => <rect class="gap" x={x(ms(g.from))} width={Math.max(2, x(ms(g.until) || until) - x(ms(g.from)))} y="0" height={laneHeight}><title>{`no records: ${g.reason.toLowerCase().replaceAll('_', ' ')}`}</title></rect>)}
            {lane.spans.map((s) => <rect class={s.tone} x={x(s.from)} width={Math.max(3, x(s.until ?? known ?? until) - x(s.from))} y="4" height={laneHeight - 8}><title>{`${s.label}: ${full(s.from)} to ${s.until ? full(s.until) : open} (${duration((s.until ?? known ?? until) - s.from)})`}</title></rect>)}
            {at !== undefined && <line class="cursor" x1={x(at)} x2={x(at)} y1="0" y2={laneHeight} />}
          </svg>
        </div>
      ))}
      <div class="lane">
        <label class="lane-name" for="moment">Show the state at</label>
        <input id="moment" type="range" min="0" max={width} step="1" value={at === undefined ? width : x(at)} aria-valuetext={at === undefined ? 'now' : full(at)} onInput={slide} />
      </div>
      <div class="lane" aria-hidden="true">
        <span class="lane-name" />
        <span class="ticks small muted">{ticks.map((t) => <span>{short(from + t * span)}</span>)}<span>now</span></span>
      </div>
    </div>
  )
}

