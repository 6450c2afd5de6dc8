// Names of things, and texts for values of the API.
import type { Awaited, Coverage, Finding, ListNodesResponse, Owner, PreviousOwner, Scope, Workload } from './types'

export const count = (n: number, one: string, many: string) => `${n.toLocaleString('en-US')} ${n === 1 ? one : many}`

/** The name of a workload, as the commands write it. */
export function workloadName(w: Workload | undefined, netns: string): string {
  if (!w) return netns ? `netns ${netns}` : 'unknown'
  if (w.namespace && w.name) return `${w.namespace}/${w.name}`
  if (w.name) return w.name
  if (w.kind === 'EXTERNAL') return 'external device'
  if (w.process) return w.process
  return netns ? `netns ${netns}` : 'unknown'
}

export const ownerName = (o: Owner | PreviousOwner) => workloadName(o.workload, o.netns)

const kinds: Record<string, string> = { POD: 'pod', CONTAINER: 'container', VM: 'virtual machine', HOST: 'node', EXTERNAL: 'external device', UNKNOWN: 'namespace' }
export const ownerKind = (o: Owner) => kinds[o.workload?.kind ?? 'UNKNOWN'] ?? 'namespace'

/** A key that is the same for all addresses of one owner, and does not change when its name becomes known. */
export const ownerKey = (o: Owner) => [o.node, o.netns || o.mac, o.interface].join('|')

export const scopeText = (s: Scope | undefined) => (s && s.kind !== 'UNSPECIFIED' ? `${s.kind.toLowerCase()} ${s.name}` : 'not compared')

const scopeMeanings: Record<string, string> = {
  LINK: 'the address must be unique in one broadcast domain',
  NODE: 'the address must be unique on one node',
  NETWORK: 'the address must be unique in the whole network',
}
export const scopeMeaning = (s: Scope | undefined) => scopeMeanings[s?.kind ?? ''] ?? 'the address is not compared with others'

/** A kind or cause as words: in-use-unallocated becomes In use, unallocated. */
const titles: Record<string, string> = {
  'address-spoofed': 'Address spoofed',
  'mac-cloned': 'MAC cloned',
  'ipam-state-lost': 'IPAM records lost',
  'in-use-unallocated': 'In use, but IPAM considers it free',
  'booked-elsewhere': 'Allocated to another pod or node',
  'double-allocated': 'Allocated twice',
  'pod-cidr-overlap': 'Pod ranges of nodes overlap',
  'ranges-overlap': 'Ranges of networks overlap',
  'ipam-unreadable': 'IPAM records unreadable',
  'intended-not-observed': 'Intended address missing',
  'vip-held-elsewhere': 'Virtual address on the wrong node',
  'answered-by-another': 'Address answered by another node',
  'orphaned-sandbox': 'Sandbox without a pod',
  'pool-exhaustion': 'Pool almost full',
  leaked: 'Leaked allocation',
  'reused-too-soon': 'Reused too soon',
  'shared-address-answered': 'Shared address answered by several nodes',
  'duplicate-node-name': 'Duplicate node name',
}

export function title(kind: string): string {
  const words = titles[kind] ?? kind.replaceAll('-', ' ')
  return words.charAt(0).toUpperCase() + words.slice(1)
}

export const severityOrder = ['CRITICAL', 'WARNING', 'INFO', 'UNSPECIFIED']

export const ipamKinds = new Set(['in-use-unallocated', 'booked-elsewhere', 'double-allocated', 'ipam-state-lost', 'ipam-unreadable', 'leaked', 'pool-exhaustion', 'pod-cidr-overlap', 'ranges-overlap'])

/** An address that a finding is about, or what else it is about. */
export const subject = (f: Finding) => f.address || f.pool?.name || f.nodes[0] || f.owners.map(ownerName).join(', ')

/** A list of names that says how many are left out. */
export function someOf(names: string[], total = names.length, most = 6): string {
  const shown = names.slice(0, most)
  return shown.join(', ') + (total > shown.length ? ` and ${total - shown.length} more` : '')
}

/** Unseen is something that is not observed. */
export interface Unseen {
  what: string
  meaning: string
  /** The absence of conflicts proves nothing. */
  decisive: boolean
}

function awaitedName({ what, node, ipam }: Awaited): string {
  switch (what) {
    case 'JOURNAL': return 'the journal'
    case 'RECORDS':
      if (ipam === 'kubernetes') return `${node}pods and nodes in the Kubernetes API`
      return !node || node.endsWith('/') ? `the records of ${node}${ipam} in the Kubernetes API` : `the records of ${ipam} on ${node}`
    case 'JUDGEMENT': return `whether possible problems on ${node} last`
    default: return `the report of ${node}`
  }
}

/** Lists everything that is not observed, the worst first. */
export function unseen(c: Coverage | undefined, n: Pick<ListNodesResponse, 'kubernetes' | 'problems'> | undefined): Unseen[] {
  const out: Unseen[] = []
  if (c) {
    if (c.unknown === 'STARTING') out.push({ what: 'The aggregator has just started', meaning: 'agents may not have reconnected yet', decisive: true })
    if (c.unknown === 'KUBERNETES') out.push({ what: 'The Kubernetes API does not answer', meaning: 'nodes without an agent may be missing here', decisive: true })
    if (c.awaited.length) out.push({ what: `Awaited: ${someOf(c.awaited.map(awaitedName))}`, meaning: 'until then, an empty list proves nothing', decisive: true })
    if (!c.heard && !c.silentNodes.length) out.push({ what: 'No agent reports', meaning: 'nothing is observed', decisive: true })
    const silent = c.expected - c.heard
    if (silent > 0) out.push({ what: `${count(silent, 'node does', 'nodes do')} not report: ${someOf(c.silentNodes, silent)}`, meaning: 'a duplicate there is not found', decisive: true })
    if (c.withoutAddresses) out.push({ what: `${count(c.withoutAddresses, 'node does', 'nodes do')} not see addresses inside namespaces: ${someOf(c.nodesWithoutAddresses, c.withoutAddresses)}`, meaning: 'only duplicates that frames show are found there', decisive: true })
    if (c.leftOut) out.push({ what: `Records of ${count(c.leftOut, 'node', 'nodes')} are left out: ${someOf(c.nodesLeftOut, c.leftOut)}`, meaning: 'the memory budget of the aggregator is used up', decisive: true })
    if (c.withoutFrames) out.push({ what: `${count(c.withoutFrames, 'node does', 'nodes do')} not observe all frames: ${someOf(c.nodesWithoutFrames, c.withoutFrames)}`, meaning: 'a duplicate that only frames show is not found there', decisive: false })
  }
  if (n) {
    if (n.kubernetes?.state === 'STALE' && c?.unknown !== 'KUBERNETES') out.push({ what: 'The Kubernetes API does not answer', meaning: 'names and phases of pods may be outdated', decisive: false })
    for (const p of n.problems) out.push({ what: p, meaning: 'problem of the aggregator', decisive: false })
    for (const p of n.kubernetes?.problems ?? []) out.push({ what: p, meaning: 'problem with the Kubernetes API', decisive: false })
  }
  return out
}

const numbers = new Intl.Collator('en', { numeric: true })

/** Orders addresses as numbers. */
export const compareAddresses = (a: string, b: string) => numbers.compare(a, b)
