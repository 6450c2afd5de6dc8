// What is wrong now: conflicts, findings, and what is not seen.
import { AddressLink, Ago, Badge, Empty, More } from '../parts/basics'
import { Incidents } from '../parts/incident'
import { incidents } from '../incidents'
import { active, conflictsKnown, connection, coverage, findings, nodes, owners, resolved } from '../live'
import { duration, full, ms } from '../time'
import { compareAddresses, count, ownerName, someOf, unseen } from '../words'
import { route, to } from '../route'
import type { Conflict, Node } from '../types'

export function Now() {
  const { view, subject } = route.value
  return (
    <>
      <Verdict conflicts={active.value} />
      <NotSeen />
      {incidents.value.length > 0 && <section aria-label="Incidents">
        <h2>Incidents <span class="muted">— what has one cause is one row</span></h2>
        <Incidents all={incidents.value} linked={view === 'conflict' || view === 'finding' ? subject : ''} />
      </section>}
      <Resolved />
      <Agents />
    </>
  )
}

/** The answer in one sentence. Good news needs somebody who has looked. */
function Verdict({ conflicts }: { conflicts: Conflict[] }) {
  const c = coverage.value
  const confirmed = conflicts.filter((o) => o.state === 'CONFIRMED' && !o.acknowledgement).length
  const suspected = conflicts.filter((o) => o.state === 'SUSPECTED' && !o.acknowledgement).length
  const acknowledged = conflicts.length - confirmed - suspected
  const addresses = new Set(conflicts.filter((o) => !o.acknowledgement).map((o) => o.address)).size
  const critical = [...findings.value.values()].filter((f) => f.severity === 'CRITICAL').length
  const stale = connection.value.state === 'lost'
  let tone = 'good', shape = '✔', text = 'No address is held twice', facts = ''
  const seen = c ? `${c.heard.toLocaleString('en-US')} of ${count(c.expected, 'node', 'nodes')}` : ''
  const looked = owners.value === undefined ? `${seen} ${c?.heard === 1 ? 'reports' : 'report'}` : `${count(owners.value, 'owner', 'owners')} on ${seen}`
  if (addresses) {
    tone = confirmed ? 'bad' : 'warn'
    shape = confirmed ? '✖' : '◐'
    text = `${count(addresses, 'address is', 'addresses are')} held twice${confirmed ? '' : ', it seems'}`
    const where = [...new Set(conflicts.filter((o) => !o.acknowledgement).flatMap((o) => o.owners.map((w) => w.node)))].filter(Boolean).sort(compareAddresses)
    facts = `${[confirmed && `${confirmed} confirmed`, suspected && `${suspected} suspected`, acknowledged && `${acknowledged} acknowledged`].filter(Boolean).join(', ')} · on ${someOf(where)}`
  } else if (!c || !conflictsKnown.value) {
    ;[tone, shape, text, facts] = ['quiet', '…', stale ? 'Cannot tell' : 'Connecting', stale ? connection.value.why : '']
  } else if (c.incomplete) {
    ;[tone, shape, text] = ['warn', '?', 'Cannot tell whether an address is held twice']
    facts = `none is known, but not everything is seen: ${looked}`
  } else {
    facts = looked + (acknowledged ? ` · ${count(acknowledged, 'known conflict is', 'known conflicts are')} acknowledged` : '')
  }
  if (stale && tone === 'good') [tone, shape, text] = ['warn', '?', 'No address was held twice']
  return (
    <section class={`verdict ${tone}`} aria-live="polite" aria-label="Verdict">
      <span class="shape" aria-hidden="true">{shape}</span>
      <div>
        <h1>{text}</h1>
        <p>{facts}{critical > 0 && ` · ${count(critical, 'critical finding', 'critical findings')}`}{stale && ` · as of ${full(connection.value.since)}`}</p>
      </div>
    </section>
  )
}

function NotSeen() {
  const list = unseen(coverage.value, nodes.value)
  if (!list.length) return null
  return (
    <section class="unseen" role="alert" aria-label="Not seen">
      <h2><span aria-hidden="true">◌</span> Not seen</h2>
      <ul>{list.map((u) => <li class={`wrap ${u.decisive ? 'decisive' : ''}`}><b>{u.what}</b> <span>— {u.meaning}</span></li>)}</ul>
    </section>
  )
}

function Resolved() {
  const list = resolved.value
  if (!list.length) return null
  return (
    <section aria-label="Recently resolved">
      <h2>Recently resolved</h2>
      <ul class="plain">
        <More items={list} most={5}>{(c) => (
          <li key={c.id + c.episode} data-resolved={c.id} class="row">
            <Badge state="RESOLVED" /> <AddressLink address={c.address} /> <span class="wrap">{c.owners.map(ownerName).join(' ⇄ ')}</span>
            <span class="end muted">lasted {duration(ms(c.resolvedAt) - ms(c.detectedAt))}, <Ago at={ms(c.resolvedAt)} /></span>
          </li>
        )}</More>
      </ul>
    </section>
  )
}

const troubled = (n: Node) => n.state !== 'LIVE' || n.problems.length > 0 || n.incomplete || n.flooding.length > 0 || n.wire === 'off'

function Agents() {
  const list = nodes.value?.nodes
  if (!list) return null
  const bad = list.filter(troubled)
  const live = list.filter((n) => n.state === 'LIVE').length
  return (
    <section aria-label="Agents">
      <h2>Agents <span class="muted">— {live} of {list.length} live{nodes.value?.kubernetes && nodes.value.kubernetes.state !== 'OFF' && `, Kubernetes API ${nodes.value.kubernetes.state.toLowerCase()}`}</span></h2>
      {!list.length && <Empty>No agent has reported. Start one with <code>ipwitness-agent</code>.</Empty>}
      {list.length > 0 && !bad.length && <Empty>All agents report, and none has a problem. <a href={to('map')}>Show all</a></Empty>}
      <ul class="plain">
        <More items={bad} most={10}>{(n) => (
          <li class="row" key={n.name}>
            <Badge state={n.state === 'LIVE' ? 'PROBLEM' : 'DISCONNECTED'} /> <a href={to('map', n.name)}>{n.name}</a>
            <span class="wrap grow">{[...n.problems, ...n.flooding.map((f) => `flood on ${f.interface}: ${f.rate}/s left out`), n.wire === 'off' ? 'frames are not observed' : ''].filter(Boolean).join(' · ')}</span>
            {n.state !== 'LIVE' && <span class="end muted">heard <Ago at={ms(n.lastHeard)} /></span>}
          </li>
        )}</More>
      </ul>
    </section>
  )
}
