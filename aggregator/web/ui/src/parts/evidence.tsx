// The evidence of a conflict on a small timeline: a lane for each owner.
import { ms, short } from '../time'
import { useNow } from './basics'
import { ownerName } from '../words'
import type { Conflict } from '../types'

const kinds: Record<string, string> = {
  ASSIGNED: 'the kernel has it',
  ANNOUNCED: 'announced on the wire',
  ANSWERED: 'answered on the wire',
  USED: 'used on the wire',
  DAD_FAILED: 'duplicate address detection failed',
  BELIEVED: 'in a neighbour table',
}

const laneHeight = 26
const width = 600
const left = 4

export function EvidenceTimeline({ conflict }: { conflict: Conflict }) {
  const until = ms(conflict.resolvedAt) || useNow()
  const times = conflict.owners.flatMap((o) => [ms(o.assignedAt ?? o.firstSeen), ...o.evidence.map((e) => ms(e.firstSeen))]).concat(ms(conflict.detectedAt)).filter(Number.isFinite)
  if (!times.length) return null
  const from = Math.min(...times)
  const span = Math.max(until - from, 1)
  // Early observations are close together, so the scale is that of a square root.
  const x = (t: number) => left + Math.sqrt(Math.min(1, Math.max(0, (t - from) / span))) * (width - 2 * left)
  const lanes = conflict.order.length === conflict.owners.length ? conflict.order.map((i) => conflict.owners[i]!) : conflict.owners
  const shown = lanes.slice(0, 6)
  const events = [
    { t: ms(conflict.detectedAt), word: 'detected' },
    { t: ms(conflict.confirmedAt), word: 'confirmed' },
    { t: ms(conflict.resolvedAt), word: 'resolved' },
  ].filter((e) => Number.isFinite(e.t))
  return (
    <figure class="evidence">
      <figcaption class="small muted">
        {short(from)} to {conflict.resolvedAt ? short(until) : 'now'} · {events.map((e) => `${e.word} ${short(e.t)}`).join(' · ')}
      </figcaption>
      {shown.map((o) => (
        <div class="lane">
          <span class="lane-name" title={ownerName(o)}>{ownerName(o)}</span>
          <svg viewBox={`0 0 ${width} ${laneHeight}`} preserveAspectRatio="none" role="img" aria-label={`${ownerName(o)}: ${o.evidence.map((e) => `${kinds[e.kind] ?? e.kind}, ${e.count} times, last ${short(ms(e.lastSeen))}`).join('; ')}`}>
            <rect class="held" x={x(ms(o.assignedAt ?? o.firstSeen))} y="8" width={Math.max(2, x(o.state === 'LIVE' || !o.lastSeen ? until : ms(o.lastSeen)) - x(ms(o.assignedAt ?? o.firstSeen)))} height="10" />
            {events.map((e) => <line class={e.word} x1={x(e.t)} x2={x(e.t)} y1="0" y2={laneHeight} />)}
            {o.evidence.flatMap((e) => [e.firstSeen, e.lastSeen].map((t) => (
              <line class={`dot ${e.kind === 'ASSIGNED' ? 'kernel' : 'wire'}`} x1={x(ms(t))} x2={x(ms(t))} y1="13" y2="13"><title>{`${kinds[e.kind] ?? e.kind}, seen ${short(ms(t))} by ${e.witness} (${e.count} times)`}</title></line>
            )))}
          </svg>
        </div>
      ))}
      <div class="legend small muted"><span><span class="key held" aria-hidden="true" /> holds the address</span><span><span class="key kernel" aria-hidden="true" /> read from its kernel</span><span><span class="key wire" aria-hidden="true" /> seen on the wire</span><span><span class="key rule" aria-hidden="true" /> detected, confirmed</span></div>
    </figure>
  )
}
