// One address with its owners and its past, or a list of owners.
import { useEffect, useState } from 'preact/hooks'
import { get, pages, reason } from '../api'
import { AddressLink, Badge, Command, Empty, OwnerBlock, Scoped } from '../parts/basics'
import { ConflictCard } from '../parts/conflict'
import { FindingItem } from '../parts/finding'
import { History } from '../parts/history'
import { OwnerList } from '../parts/ownerlist'
import { Senders } from '../parts/senders'
import { active, findings, poll } from '../live'
import { full, ms } from '../time'
import { title } from '../words'
import { isAddress } from '../search'
import { refine, route, to } from '../route'
import type { Event, ExplainResponse, Gap, ListEventsResponse } from '../types'

export function Address() {
  const { subject, query } = route.value
  return subject ? <One key={subject} address={subject} at={query.get('at') ?? undefined} /> : <Search q={query.get('q') ?? ''} at={query.get('at') ?? undefined} />
}

function Search({ q, at }: { q: string; at: string | undefined }) {
  useEffect(() => {
    if (isAddress(q)) location.replace(to('address', q))
  }, [q])
  return (
    <>
      <h1>{q ? <>Owners of <span class="mono wrap">{q}</span></> : 'All owners'}</h1>
      <OwnerList key={q} query={{ about: q }} at={at} />
    </>
  )
}

interface Past {
  events: Event[]
  gaps: Gap[]
  from: number
  /** Earlier events are left out. */
  shortened: boolean
  /** Later events are left out, so the last events are not the present. */
  cut: boolean
  error: string
}

/** Events that are shown, and pages of events that are read to find the last ones: the server lists the oldest first. */
const mostEvents = 1000, mostEventPages = 10

async function readPast(address: string, signal: AbortSignal): Promise<Past> {
  const past: Past = { events: [], gaps: [], from: NaN, shortened: false, cut: false, error: '' }
  for await (const page of pages<ListEventsResponse>('v1/events', { address, page_size: 10000 }, mostEventPages, signal)) {
    const all = past.events.concat(page.events)
    past.shortened ||= all.length > mostEvents
    past.events = all.slice(-mostEvents)
    past.gaps.push(...page.gaps)
    past.from = ms(page.reachesBackTo)
    past.cut = page.nextPageToken !== ''
  }
  return past
}

function One({ address, at }: { address: string; at: string | undefined }) {
  const [answer, setAnswer] = useState<ExplainResponse>()
  const [error, setError] = useState('')
  const [past, setPast] = useState<Past>()
  // A change of a conflict or a finding of this address is a reason to ask again.
  const changes = [...active.value.filter((c) => c.address === address).map((c) => c.state + c.owners.length + c.because.length), ...[...findings.value.values()].filter((f) => f.address === address).map((f) => f.id)].join()

  useEffect(() => {
    const stop = new AbortController()
    const ask = () => get<ExplainResponse>('v1/explain', { address, at }, stop.signal).then(
      (a) => { setAnswer(a); setError('') },
      (e) => stop.signal.aborted || setError(reason(e)))
    void (at ? ask() : poll(5000, ask, stop.signal))
    return () => stop.abort()
  }, [address, at, changes])

  useEffect(() => {
    const stop = new AbortController()
    const ask = () => readPast(address, stop.signal).then(setPast,
      (e) => stop.signal.aborted || setPast({ events: [], gaps: [], from: NaN, shortened: false, cut: false, error: reason(e) }))
    void poll(10_000, ask, stop.signal)
    return () => stop.abort()
  }, [address, changes])

  const pick = (t: number | undefined) => refine({ at: t === undefined ? '' : new Date(t).toISOString() })
  const first = past?.events.length ? Math.min(...past.events.map((e) => ms(e.time))) : NaN
  const from = Number.isFinite(first) ? first - Math.max(1000, (Date.now() - first) * 0.03) : past?.from ?? NaN
  return (
    <>
      <h1 class="mono wrap">{address} {answer && <Scoped scope={answer.scope} />}</h1>
      {at && <p class="banner past" role="status"><b>The past: {full(ms(at))}</b> <button type="button" onClick={() => pick(undefined)}>Back to now</button></p>}
      {error && <p class="error" role="alert">{error}</p>}
      {answer && <p class="summary wrap" data-summary>{answer.summary}</p>}
      {answer?.gap && <p class="banner warn">The journal has a gap at this time: changes since {full(ms(answer.gap.from))} may be missing.</p>}
      <section aria-label="History">
        <h2>History</h2>
        {past?.error && <Empty>{past.error}</Empty>}
        {past && !past.error && !past.events.length && <Empty>The journal has no record of this address{Number.isFinite(past.from) ? ` since ${full(past.from)}` : ''}.</Empty>}
        {past && past.events.length > 0 && <History events={past.events} gaps={past.gaps} from={from} known={past.cut ? ms(past.events.at(-1)!.time) : undefined} at={at ? ms(at) : undefined} onPick={pick} />}
        {past?.cut && <p class="small muted">There are too many changes to read: those after {full(ms(past.events.at(-1)?.time))} are not shown. All changes:</p>}
        {past?.shortened && !past.cut && <p class="small muted">Only the last {mostEvents} changes are shown. All changes:</p>}
        {(past?.cut || past?.shortened) && <Command text={`ipwitness history ${address}`} />}
      </section>
      {answer && <Explanation answer={answer} at={at} />}
      {changes && !at && <Senders address={address} changes={changes} />}
    </>
  )
}

function Explanation({ answer, at }: { answer: ExplainResponse; at: string | undefined }) {
  const about = at ? answer.findings : [...findings.value.values()].filter((f) => f.address === answer.address || f.addresses.includes(answer.address))
  return (
    <>
      <section aria-label="Owners">
        <h2>{at ? 'Owners then' : 'Owners'}</h2>
        {!answer.owners.length && <Empty>{answer.coverage?.incomplete && !at ? 'No owner is known, but not everything is seen.' : 'Nobody holds this address.'}</Empty>}
        <div class="owners">{answer.owners.map((o) => <OwnerBlock owner={o} note={<Previous owner={o} />} />)}</div>
      </section>
      {answer.conflicts.length > 0 && <section aria-label="Conflicts"><h2>Conflicts</h2>{answer.conflicts.map((c) => <ConflictCard key={c.id} conflict={c} open={c.state !== 'RESOLVED' && !at} />)}</section>}
      {about.length > 0 && <section aria-label="Findings"><h2>Findings</h2>{about.map((f) => <article class="card finding"><header><Badge state={f.severity} /><h3>{title(f.kind)}</h3></header><ul class="findings"><FindingItem finding={f} open={false} /></ul></article>)}</section>}
      {answer.steps.length > 0 && <section aria-label="How it was judged">
        <h2>How it was judged</h2>
        <ul class="plain rules">
          {answer.steps.map((s) => (
            <li class="row">
              <span class={`badge ${s.applied ? 'info' : 'quiet'}`}><span aria-hidden="true">{s.applied ? '●' : '○'}</span> {s.applied ? 'applies' : 'does not apply'}</span>
              <span class="rule"><b>{s.rule}</b> <Scoped scope={s.scope} /></span> <span class="wrap grow">{s.reason}</span>
            </li>
          ))}
        </ul>
        <Command text={`ipwitness explain ${answer.address}`} />
      </section>}
    </>
  )
}

function Previous({ owner }: { owner: { previous?: { node: string; until?: string; workload?: { namespace: string; name: string } }; address: string } }) {
  const p = owner.previous
  if (!p) return null
  return <p class="small">Before: <AddressLink address={owner.address} {...(p.until ? { at: new Date(ms(p.until) - 1).toISOString() } : {})} /> was held by {[p.workload?.namespace, p.workload?.name].filter(Boolean).join('/') || 'another owner'} on {p.node} until {full(ms(p.until))}</p>
}
