// What a user searches for: an address, a prefix, a MAC, a pod, a node or a namespace.
import { get, type Query } from './api'
import type { ListOwnersResponse } from './types'

const mac = /^([0-9a-f]{1,2}[:-]){5}[0-9a-f]{1,2}$/i
const ipv4 = /^\d{1,3}(\.\d{1,3}){3}$/
const ipv6 = /^[0-9a-f]*:[0-9a-f:.]+$/i

/** Reports whether a text is one address, as far as its form goes. */
export const isAddress = (q: string) => ipv4.test(q) || (ipv6.test(q) && !mac.test(q))

export interface Meaning {
  /** What the text was taken for. */
  as: string
  query: Query
}

/** Lists what a text can mean, the most probable first. */
export function meanings(text: string): Meaning[] {
  const q = text.trim()
  if (!q) return [{ as: 'all addresses', query: {} }]
  if (mac.test(q)) return [{ as: 'MAC', query: { mac: q.replaceAll('-', ':').toLowerCase() } }]
  if (isAddress(q)) return [{ as: 'address', query: { address: q } }]
  const [left = '', right = ''] = q.split('/')
  if (q.includes('/') && isAddress(left)) return [{ as: 'prefix', query: { cidr: q } }]
  if (q.includes('/')) return [right ? { as: 'pod', query: { namespace: left, pod: right } } : { as: 'namespace', query: { namespace: left } }]
  // A node is an owner itself, with its name, so that name is that of a pod, too.
  return [{ as: 'node', query: { node: q } }, { as: 'pod', query: { pod: q } }, { as: 'namespace', query: { namespace: q } }]
}

/** The meaning of a text that has owners, or the first one if none has. */
export async function resolve(text: string, at: string | undefined, signal: AbortSignal): Promise<Meaning> {
  const all = meanings(text)
  if (all.length === 1) return all[0]!
  const answers = await Promise.all(all.map((m) => get<ListOwnersResponse>('v1/owners', { ...m.query, at, page_size: 1 }, signal)))
  return all[Math.max(0, answers.findIndex((a) => a.owners.length > 0))]!
}
