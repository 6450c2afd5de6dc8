// Conflicts and findings with one cause belong together. The server says which do.
import { computed } from '@preact/signals'
import { active, findings } from './live'
import { ms } from './time'
import { compareAddresses, severityOrder } from './words'
import type { Conflict, Finding } from './types'

export interface Incident {
  id: string
  conflicts: Conflict[]
  findings: Finding[]
  severity: string
  cause: string
  since: number
  /** Number of addresses that the members are about. */
  addresses: number
  nodes: string[]
}

export const severityOf = (c: Conflict) => (c.acknowledgement ? 'INFO' : c.state === 'CONFIRMED' ? 'CRITICAL' : 'WARNING')

/** The addresses that a finding is about. */
const addressesOf = (f: Finding) => (f.addresses.length ? f.addresses : f.address && !f.address.includes('/') ? [f.address] : [])

function whole(id: string, conflicts: Conflict[], found: Finding[]): Incident {
  const addresses = new Set<string>(), nodes = new Set<string>()
  let worst = severityOrder.length, since = Infinity, lost = false, known = ''
  const note = (severity: string, at: number) => {
    worst = Math.min(worst, severityOrder.indexOf(severity))
    since = Math.min(since, at)
  }
  for (const c of conflicts) {
    addresses.add(c.address)
    for (const o of c.owners) nodes.add(o.node)
    note(severityOf(c), ms(c.detectedAt))
    if (c.cause && c.cause !== 'unknown') known = c.cause
  }
  for (const f of found) {
    for (const a of addressesOf(f)) addresses.add(a)
    for (const n of f.nodes) nodes.add(n)
    note(f.severity, ms(f.detectedAt))
    lost ||= f.kind === 'ipam-state-lost'
  }
  nodes.delete('')
  const cause = (lost && 'ipam-state-lost') || known || found.toSorted((a, b) => severityOrder.indexOf(a.severity) - severityOrder.indexOf(b.severity))[0]?.kind || 'unknown'
  return { id, conflicts, findings: found, severity: severityOrder[worst] ?? 'INFO', cause, since, addresses: addresses.size, nodes: [...nodes].sort(compareAddresses) }
}

/** The incidents, the most urgent first. */
export const incidents = computed(() => {
  const all = new Map<string, { conflicts: Conflict[]; findings: Finding[] }>()
  const of = (m: Conflict | Finding) => {
    const id = m.incident || m.id
    let group = all.get(id)
    if (!group) all.set(id, (group = { conflicts: [], findings: [] }))
    return group
  }
  for (const c of active.value) of(c).conflicts.push(c)
  for (const f of findings.value.values()) of(f).findings.push(f)
  return [...all].map(([id, g]) => whole(id, g.conflicts, g.findings)).sort((a, b) =>
    severityOrder.indexOf(a.severity) - severityOrder.indexOf(b.severity) || b.conflicts.length - a.conflicts.length || b.since - a.since || (a.id < b.id ? -1 : 1))
})
