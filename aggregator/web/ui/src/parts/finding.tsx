// A finding, and findings of one kind together.
import { useEffect, useRef, useState } from 'preact/hooks'
import { AddressLink, Badge, Command, More, Steps, Time } from './basics'
import { ms } from '../time'
import { to } from '../route'
import { compareAddresses, count, severityOrder, subject, title } from '../words'
import type { Finding } from '../types'

export function FindingGroups({ findings, open }: { findings: Finding[]; open?: string | undefined }) {
  const kinds = new Map<string, Finding[]>()
  for (const f of findings) {
    const same = kinds.get(f.kind)
    if (same) same.push(f)
    else kinds.set(f.kind, [f])
  }
  const worst = (fs: Finding[]) => Math.min(...fs.map((f) => severityOrder.indexOf(f.severity)))
  const groups = [...kinds].sort(([a, fa], [b, fb]) => worst(fa) - worst(fb) || fb.length - fa.length || a.localeCompare(b))
  return <>{groups.map(([kind, all]) => <FindingGroup key={kind} kind={kind} all={all} linked={all.find((f) => f.id === open)?.id} />)}</>
}

/** linked is the id of the finding that the address of the view names; undefined if it is not in this group. */
function FindingGroup({ kind, all, linked }: { kind: string; all: Finding[]; linked: string | undefined }) {
  const [open, setOpen] = useState(linked !== undefined)
  const card = useRef<HTMLElement>(null)
  useEffect(() => {
    if (!linked) return
    setOpen(true)
    card.current?.scrollIntoView({ block: 'start' })
  }, [linked])
  // The linked finding is the first one, because the list shows only its first items.
  const sorted = all.toSorted((a, b) => Number(b.id === linked) - Number(a.id === linked) || compareAddresses(subject(a), subject(b)))
  const first = sorted[0]!
  const severity = severityOrder.find((s) => all.some((f) => f.severity === s))!
  return (
    <article class={`card finding ${severity.toLowerCase()}`} data-kind={kind} tabIndex={-1} ref={card}>
      <header>
        <Badge state={severity} />
        <h3>{title(kind)}</h3>
        <span class="muted">{count(all.length, 'finding', 'findings')}</span>
        <span class="end"><Time at={Math.min(...all.map((f) => ms(f.detectedAt)))} prefix="since" /></span>
      </header>
      {!open && <p class="wrap">{all.length === 1 ? first.summary : sorted.slice(0, 6).map((f, i) => <>{i > 0 && ', '}{f.address && !f.address.includes('/') ? <AddressLink address={f.address} /> : subject(f)}</>)}{all.length > 6 && ` and ${all.length - 6} more`}</p>}
      {open && <ul class="findings"><More items={sorted} most={20}>{(f) => <FindingItem key={f.id} finding={f} open={f.id === linked || all.length === 1} />}</More></ul>}
      <button type="button" class="link" aria-expanded={open} onClick={() => setOpen(!open)}>{open ? 'Less' : 'Details, and what to do'}</button>
    </article>
  )
}

export function FindingItem({ finding: f, open }: { finding: Finding; open: boolean }) {
  return (
    <li>
      <details open={open}>
        <summary class="wrap">{f.summary}</summary>
        <div class="columns">
          <section>
            <h4>What to do</h4>
            {f.remedy.length > 0 && <Steps actions={f.remedy} />}
            {f.remedy.length === 0 && f.fixes.map((fix) => <><p class="wrap">{fix.what}{fix.manual && ' (by hand)'}</p><Command text={fix.command} node={fix.node} /></>)}
            {f.runbook && <p class="small"><a href={f.runbook} rel="noreferrer noopener" target="_blank">Runbook</a> · <a href={to('finding', f.id)}>Link to this finding</a></p>}
          </section>
          <section>
            <h4>Why</h4>
            <ul class="why">{f.evidence.map((e) => <li class="wrap">{e}</li>)}</ul>
            {f.addresses.length > 0 && <p class="addresses small"><b>Addresses:</b> <More items={f.addresses} most={12}>{(a) => <><AddressLink address={a} />{' '}</>}</More></p>}
          </section>
        </div>
      </details>
    </li>
  )
}
