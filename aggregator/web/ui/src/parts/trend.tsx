// The use of a pool over time: a line that is as small as a word, and a chart.
import { useState } from 'preact/hooks'
import { duration, full, ms, short, zone } from '../time'
import type { Pool } from '../types'

/** Use is the number of allocated addresses of a pool over the last day. */
export interface Use {
  /** The number from a time on, the oldest first. The last one is that of now. */
  points: { at: number; n: number }[]
  peak: number
  /** The number of addresses of the pool; 0 if it is not known. */
  size: number
  /** When the pool is full at the rate of the last hour; undefined if it does not grow. */
  fullAt: number | undefined
}

const hour = 3_600_000

/** Makes the use of a pool from its history. */
export function useOf(p: Pool, history: Pool['history'], now: number): Use {
  const points = history.map((s) => ({ at: ms(s.at), n: Number(s.allocated) })).filter((s) => s.at < now)
  points.push({ at: now, n: Number(p.allocated) })
  return { points, peak: Math.max(...points.map((s) => s.n)), size: Number(p.size), fullAt: p.exhaustedIn ? now + parseFloat(p.exhaustedIn) * 1000 : undefined }
}

/** The number that was allocated at a time; undefined before the first point. */
export const allocatedAt = (u: Use, at: number) => u.points.findLast((s) => s.at <= at)?.n

/** How the use has changed in the last hour, or since it is known. */
function change(u: Use): string {
  const now = u.points.at(-1)!, first = u.points[0]!
  const grown = now.n - (allocatedAt(u, now.at - hour) ?? first.n)
  const period = duration(Math.min(hour, now.at - first.at))
  return grown ? `${grown > 0 ? '+' : '−'}${Math.abs(grown).toLocaleString('en-US')} in ${period}` : `steady for ${period}`
}

/** The line through the points, in which the number changes at once, as far as an edge. */
function line(u: Use, x: (t: number) => number, y: (n: number) => number): string {
  let d = ''
  for (const [i, s] of u.points.entries()) d += i ? `H${x(s.at).toFixed(1)}V${y(s.n).toFixed(1)}` : `M${x(s.at).toFixed(1)} ${y(s.n).toFixed(1)}`
  return d
}

const width = 1000, height = 200
/** With room for the lines at the edges. */
const box = `0 -4 ${width} ${height + 8}`

/** Scales the time from one end to the other, and numbers from zero to the top. */
function scales(from: number, until: number, top: number) {
  const x = (t: number) => ((Math.max(t, from) - from) / Math.max(until - from, 1)) * width
  const y = (n: number) => height - (n / top) * height
  return { x, y }
}

/** The line of a pool in the table. from is the same for all pools. */
export function Trend({ use: u, name, from, open, onOpen }: { use: Use; name: string; from: number; open: boolean; onOpen: () => void }) {
  const now = u.points.at(-1)!
  // The line uses the height that it has, so that a change is visible. It begins at zero, so that its size is not exaggerated.
  const top = u.size ? Math.min(u.size, Math.max(u.peak * 1.25, 1)) : Math.max(u.peak * 1.25, 1)
  const { x, y } = scales(from, now.at, top)
  const d = line(u, x, y)
  const left = u.fullAt === undefined ? change(u) : `full in ${duration(u.fullAt - now.at)}`
  return (
    <button type="button" class="trend" aria-expanded={open} aria-label={`Use of ${name} over time: ${left}`} onClick={onOpen}>
      <svg viewBox={box} preserveAspectRatio="none" aria-hidden="true">
        <path class="area" d={`${d}V${height}H${x(u.points[0]!.at)}Z`} />
        <path class="line" d={d} />
        {top === u.size && <path class="limit" d={`M0 0H${width}`} />}
      </svg>
      <span class={u.fullAt === undefined ? '' : 'bad-text'}>{u.fullAt === undefined ? left : <b>{left}</b>} <span class="fold" aria-hidden="true">{open ? '▾' : '▸'}</span></span>
    </button>
  )
}

/** The chart of one pool. The forecast ends when the pool is full, but does not go further than the past goes back. */
export function Chart({ use: u, name }: { use: Use; name: string }) {
  const now = u.points.at(-1)!, first = u.points[0]!
  const [pointed, point] = useState<number>()
  const past = Math.max(now.at - first.at, hour / 12)
  const fullIn = u.fullAt === undefined ? 0 : u.fullAt - now.at
  const until = fullIn ? now.at + Math.min(past, Math.max(fullIn * 1.1, past / 4)) : now.at
  const from = now.at - past
  const then = fullIn ? Math.min(u.size, now.n + ((u.size - now.n) * (until - now.at)) / fullIn) : now.n
  const whole = u.size > 0 && Math.max(u.peak, then) > u.size / 4
  const top = whole ? u.size : Math.max(1, Math.ceil(Math.max(u.peak, then) * 1.25))
  const { x, y } = scales(from, until, top)
  const d = line(u, x, y)
  const share = (t: number) => `${(x(t) / width) * 100}%`
  const shown = pointed === undefined ? undefined : allocatedAt(u, pointed)
  const move = (e: PointerEvent) => {
    const box = (e.currentTarget as Element).getBoundingClientRect()
    point(Math.min(now.at, from + ((e.clientX - box.left) / box.width) * (until - from)))
  }
  const forecast = u.fullAt === undefined ? '' : ` At this rate, the pool is full in ${duration(fullIn)}, at ${full(u.fullAt)}.`
  return (
    <figure class="chart" data-chart={name}>
      <figcaption><b>{name}</b>: {now.n.toLocaleString('en-US')}{u.size > 0 && ` of ${u.size.toLocaleString('en-US')}`} allocated, {change(u)}.{forecast}</figcaption>
      <div class="plot">
        <div class="scale small muted" aria-hidden="true"><span>{top.toLocaleString('en-US')}{whole && ' = full'}</span><span>0</span></div>
        <svg viewBox={box} preserveAspectRatio="none" role="img" aria-label={`${first.n.toLocaleString('en-US')} at ${full(first.at)}, ${u.peak.toLocaleString('en-US')} at most, ${now.n.toLocaleString('en-US')} now.`}
          onPointerMove={move} onPointerLeave={() => point(undefined)}>
          <path class="rule" d={`M0 ${height / 2}H${width}M0 ${height}H${width}`} />
          <path class="area" d={`${d}V${height}H${x(first.at)}Z`} />
          <path class="line" d={d} />
          {u.fullAt !== undefined && <path class="forecast" d={`M${x(now.at)} ${y(now.n)}L${x(Math.min(u.fullAt, until))} ${y(then)}`} />}
          {until > now.at && <path class="rule" d={`M${x(now.at)} 0V${height}`} />}
          {whole && <path class="limit" d={`M0 0H${width}`} />}
          {pointed !== undefined && <path class="cursor" d={`M${x(pointed)} 0V${height}`} />}
        </svg>
        <div class="times small muted" aria-hidden="true">
          <span>{short(from)}</span>
          {until > now.at && <span class="now" style={{ insetInlineStart: share(now.at) }}>now</span>}
          <span>{until > now.at ? `in ${duration(until - now.at)}` : 'now'}</span>
        </div>
      </div>
      <p class="small muted">{pointed === undefined
        ? <>Times are in {zone.value}. {u.fullAt !== undefined && 'The dashed line goes on at the rate of the last hour. '}{now.at - first.at < 24 * hour - hour / 2 && `The aggregator has known this pool since ${short(first.at)}.`}</>
        : shown === undefined ? `${short(pointed)}: not known` : `${short(pointed)}: ${shown.toLocaleString('en-US')} allocated`}</p>
    </figure>
  )
}
