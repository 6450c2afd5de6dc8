// A conflict as a card.
import { useState } from 'preact/hooks'
import { EvidenceTimeline } from './evidence'
import { AddressLink, Badge, OwnerBlock, Scoped, Steps, Time } from './basics'
import { full, ms } from '../time'
import { ownerName, title } from '../words'
import { to } from '../route'
import type { Conflict } from '../types'

export function ConflictCard({ conflict: c, open: opened }: { conflict: Conflict; open: boolean }) {
  const [open, setOpen] = useState(opened)
  const state = c.acknowledgement ? 'ACKNOWLEDGED' : c.state
  const services = c.related.filter((r) => r.kind === 'Service')
  const names = c.owners.map(ownerName)
  return (
    <article class={`card conflict ${state.toLowerCase()}`} data-conflict={c.id} aria-label={`${c.address}, ${state.toLowerCase()}`} tabIndex={-1}>
      <header>
        <Badge state={c.state} />
        {c.acknowledgement && <Badge state="ACKNOWLEDGED" />}
        <h3 class="address"><AddressLink address={c.address} /></h3>
        <span class="versus wrap">{names.slice(0, 3).join(' ⇄ ')}{names.length > 3 && ` and ${names.length - 3} more`}</span>
        <span class="end"><Time at={c.state === 'RESOLVED' ? ms(c.resolvedAt) : ms(c.detectedAt)} prefix={c.state === 'RESOLVED' ? 'resolved' : 'since'} /></span>
      </header>
      {c.acknowledgement && <p class="small">Acknowledged{c.acknowledgement.acknowledgedBy && ` by ${c.acknowledgement.acknowledgedBy}`} until {full(ms(c.acknowledgement.expiresAt))}: <q>{c.acknowledgement.reason}</q></p>}
      <p class="cause"><b>{c.cause && c.cause !== 'unknown' ? title(c.cause) : 'Cause unknown'}</b>{services.length > 0 && <span class="service"> · <b>Traffic:</b> {services.map((s) => `Service ${s.namespace}/${s.name}`).join(', ')} {services.length > 1 ? 'send' : 'sends'} to this address</span>} · <Scoped scope={c.scope} />{c.episode > 1 && <> · episode {c.episode}</>}</p>
      {!open && <button type="button" class="link" aria-expanded="false" onClick={() => setOpen(true)}>Owners, evidence, and what to do</button>}
      {open && <Details conflict={c} />}
      {open && !opened && <button type="button" class="link" aria-expanded="true" onClick={() => setOpen(false)}>Less</button>}
    </article>
  )
}

function Details({ conflict: c }: { conflict: Conflict }) {
  const others = c.related.filter((r) => r.kind !== 'Service' && !r.healthy)
  return (
    <>
      <div class="owners">
        {c.owners.slice(0, 8).map((o, i) => (
          <>
            {i > 0 && <span class="vs" aria-hidden="true">vs</span>}
            <OwnerBlock owner={o} note={o.routed && <p class="small"><span class="tag">traffic</span> the node routes packets here</p>} />
          </>
        ))}
      </div>
      {c.owners.length > 8 && <p class="small muted">and {c.owners.length - 8} more owners</p>}
      <div class="columns">
        <section>
          <h4>What to do</h4>
          {c.remedy.length ? <Steps actions={c.remedy} /> : <p class="muted">{c.state === 'RESOLVED' ? 'Nothing: it is over.' : 'The steps follow when the nodes of the owners have reported again.'}</p>}
          {c.runbook && <p class="small"><a href={c.runbook} rel="noreferrer noopener" target="_blank">Runbook</a> · <a href={to('address', c.address)}>Explain {c.address}</a> · <a href={to('conflict', c.id)}>Link to this conflict</a></p>}
        </section>
        <section>
          <h4>Why</h4>
          <ul class="why">
            {c.because.map((b) => <li class="wrap">{b}</li>)}
            {c.diagnosis.map((d) => <li class="wrap"><span class="tag">{d.step}</span> {d.answer}</li>)}
            {others.map((r) => <li class="wrap"><span class="tag">{r.kind}</span> {r.reason}: {r.message}</li>)}
          </ul>
          <h4>Evidence</h4>
          <EvidenceTimeline conflict={c} />
        </section>
      </div>
    </>
  )
}
