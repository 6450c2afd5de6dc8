// Incidents in rows, each of which opens to what to do and to its members in rows.
import { useEffect, useState } from 'preact/hooks'
import { get, reason } from '../api'
import { Badge, Command, Steps, Time } from './basics'
import { ConflictCard } from './conflict'
import { FindingItem } from './finding'
import { Folds } from './folds'
import { severityOf, type Incident } from '../incidents'
import { full, ms } from '../time'
import { compareAddresses, count, ownerName, severityOrder, someOf, subject, title } from '../words'
import type { Conflict, Finding, Incident as Answer } from '../types'

type Member = Conflict | Finding
const isConflict = (m: Member): m is Conflict => 'episode' in m
const membersOf = (i: Incident): Member[] => [...i.conflicts, ...i.findings]
const stateOf = (c: Conflict) => (c.acknowledgement ? 'ACKNOWLEDGED' : c.state)

/** linked is the id of the member that the address of the view names. */
export function Incidents({ all, linked }: { all: Incident[]; linked: string }) {
  const holder = linked ? all.find((i) => membersOf(i).some((m) => m.id === linked)) : undefined
  return (
    <Folds items={all} id={(i) => i.id} label="Incidents" linked={holder?.id ?? ''} inView={!holder || membersOf(holder).length === 1} first
      mark={(i) => { const all = membersOf(i); return all.length === 1 ? markOf(all[0]!) : '' }}
      row={(i) => <IncidentRow incident={i} />} detail={(i) => <Opened incident={i} linked={linked} />} />
  )
}

function IncidentRow({ incident: i }: { incident: Incident }) {
  const all = membersOf(i)
  if (all.length === 1) return <MemberRow member={all[0]!} />
  const held = i.conflicts.length
  return (
    <>
      <Badge state={i.severity} />
      <b>{i.cause === 'unknown' ? 'Cause unknown' : title(i.cause)}</b>
      <span class="grow">{count(i.addresses, 'address', 'addresses')}{held > 0 && `, ${held.toLocaleString('en-US')} held twice`}{i.nodes.length > 0 && ` · on ${someOf(i.nodes, i.nodes.length, 3)}`}</span>
      <span class="end"><Time at={i.since} prefix="since" /></span>
    </>
  )
}

const markOf = (m: Member) => (isConflict(m) ? `${m.address}, ${stateOf(m).toLowerCase()}` : `${m.kind} ${subject(m)}`)

/** A conflict or finding in one line. */
function MemberRow({ member: m }: { member: Member }) {
  return isConflict(m)
    ? <>
      <Badge state={stateOf(m)} />
      <b class="mono">{m.address}</b>
      <span class="grow">{m.owners.map(ownerName).join(' ⇄ ')}{m.cause && m.cause !== 'unknown' && <span class="muted"> · {title(m.cause)}</span>}</span>
      <span class="end"><Time at={ms(m.detectedAt)} prefix="since" /></span>
    </>
    : <>
      <Badge state={m.severity} />
      <b class={m.address ? 'mono' : ''}>{subject(m)}</b>
      <span class="grow">{title(m.kind)}{m.owners.length > 0 && ` · ${someOf(m.owners.map(ownerName), m.owners.length, 2)}`}</span>
      <span class="end"><Time at={ms(m.detectedAt)} prefix="since" /></span>
    </>
}

const MemberDetail = ({ member: m }: { member: Member }) => isConflict(m)
  ? <ConflictCard conflict={m} open />
  : <ul class="findings"><FindingItem finding={m} open /></ul>

function Opened({ incident: i, linked }: { incident: Incident; linked: string }) {
  const all = membersOf(i)
  return all.length === 1 ? <MemberDetail member={all[0]!} /> : <Several incident={i} linked={linked} />
}

const orders: Record<string, (a: Member, b: Member) => number> = {
  urgency: (a, b) => severity(a) - severity(b),
  address: (a, b) => compareAddresses(name(a), name(b)),
  newest: (a, b) => ms(b.detectedAt) - ms(a.detectedAt),
}
const severity = (m: Member) => severityOrder.indexOf(isConflict(m) ? severityOf(m) : m.severity) - (isConflict(m) ? 0.5 : 0)
const name = (m: Member) => (isConflict(m) ? m.address : subject(m))
const text = (m: Member) => [name(m), isConflict(m) ? `${stateOf(m)} ${m.cause}` : `${m.severity} ${m.kind} ${m.nodes.join(' ')}`, ...m.owners.map((o) => `${ownerName(o)} ${o.node} ${o.mac}`)].join(' ').toLowerCase()

function Several({ incident: i, linked }: { incident: Incident; linked: string }) {
  const [plan, setPlan] = useState<Answer>()
  const [error, setError] = useState('')
  const [filter, setFilter] = useState('')
  const [order, setOrder] = useState('urgency')
  const size = i.conflicts.length + i.findings.length
  const confirmed = i.conflicts.filter((c) => c.state === 'CONFIRMED').length
  useEffect(() => {
    const stop = new AbortController()
    get<Answer>(`v1/incidents/${encodeURIComponent(i.id)}`, {}, stop.signal).then(
      (answer) => { setPlan(answer); setError('') }, (e) => stop.signal.aborted || setError(reason(e)))
    return () => stop.abort()
  }, [i.id, size, confirmed])
  const members = membersOf(i).filter((m) => !filter || text(m).includes(filter.toLowerCase())).sort((a, b) => orders[order]!(a, b) || orders.address!(a, b))
  const held = i.conflicts.length
  return (
    <article class={`card incident ${i.severity.toLowerCase()}`} data-incident={i.id} tabIndex={-1}>
      <p class="wrap">{plan?.summary ?? `${title(i.cause)}.`} Since {full(i.since)}. {held > 0 && `${count(held, 'conflict', 'conflicts')}, `}{count(i.findings.length, 'finding', 'findings')}.</p>
      <h4>Members</h4>
      <p class="tools">
        <label>Filter <input type="search" value={filter} onInput={(e) => setFilter(e.currentTarget.value)} placeholder="address, pod, node, MAC" /></label>
        <label>Order <select value={order} onChange={(e) => setOrder(e.currentTarget.value)}>{Object.keys(orders).map((o) => <option value={o}>{o}</option>)}</select></label>
        {filter && <span class="muted" role="status">{members.length.toLocaleString('en-US')} of {size.toLocaleString('en-US')}</span>}
      </p>
      <div class="scrollbox"><Folds items={members} id={(m) => m.id} mark={markOf} label="Members" linked={linked} row={(m) => <MemberRow member={m} />} detail={(m) => <MemberDetail member={m} />} /></div>
      <h4>What to do</h4>
      {error && <p class="error">{error}</p>}
      {plan && (plan.remedy.length ? <Steps actions={plan.remedy} /> : <p class="muted">The steps follow when the nodes have reported again.</p>)}
      {plan?.runbook && <p class="small"><a href={plan.runbook} rel="noreferrer noopener" target="_blank">Runbook</a></p>}
      <Command text={`ipwitness incidents ${i.id}`} />
    </article>
  )
}
