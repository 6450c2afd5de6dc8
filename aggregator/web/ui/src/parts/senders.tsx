// Who sends packets to which owner of an address.
import { useEffect, useState } from 'preact/hooks'
import { get } from '../api'
import { Command, Empty } from './basics'
import { count, ownerName, workloadName } from '../words'
import type { ExplainResponse, SendersReceiver } from '../types'

const mostNamed = 20

/** Asks the agents once, and again when changes differs: each question is a task for them. */
export function Senders({ address, changes }: { address: string; changes: string }) {
  const [answer, setAnswer] = useState<ExplainResponse>()
  useEffect(() => {
    const stop = new AbortController()
    get<ExplainResponse>('v1/explain', { address, senders: 'true' }, stop.signal).then(setAnswer, () => undefined) // the page shows the error of its own question
    return () => stop.abort()
  }, [address, changes])
  const s = answer?.senders
  if (!answer) return null
  if (!s) return answer.unseen.length > 0 ? <p class="small muted">The neighbour tables or the connection tracking of some nodes were not looked at.</p> : null
  const name = (r: SendersReceiver) => r.owners.map((i) => answer.owners[i]).map((o) => (o ? ownerName(o) : '')).filter(Boolean).join(' or ')
    || (r.workload ? `${workloadName(r.workload, '')}, which is no owner` : 'no owner')
  return (
    <section aria-label="Senders">
      <h2>Who sends to it</h2>
      {!s.receivers.length && <Empty>No neighbour table that was looked at has an entry for it.</Empty>}
      {s.receivers.length > 0 && <ul class="plain">
        {s.receivers.map((r) => {
          const names = r.senders.map((one) => `${workloadName(one.workload, one.netns)} on ${one.node}`)
          return (
            <li class="row">
              <span class="wrap grow">to <b>{name(r)}</b>, MAC <span class="mono">{r.mac}</span>: {[[r.inUse, 'now'], [r.permanent, 'permanent'], [r.old, 'not in use']].filter(([n]) => n).map(([n, what]) => `${n} ${what}`).join(', ')}
                <span class="small muted"> {names.slice(0, mostNamed).join(', ')}{names.length > mostNamed && ` and ${names.length - mostNamed} more`}</span></span>
            </li>
          )
        })}
      </ul>}
      {s.serviceCount > 0 && <p class="small">{count(s.serviceCount, 'Service has', 'Services have')} it as an endpoint: {s.services.join(', ')}{s.serviceCount > s.services.length && ' and more'}</p>}
      {s.translations.some((t) => t.former) && <p class="small">Nodes send connections to it that are older than its owner (nat-to-former-owner).</p>}
      {s.unseen.length > 0 && <p class="small muted">Not everything was looked at.</p>}
      <Command text={`ipwitness explain ${address}`} />
    </section>
  )
}
