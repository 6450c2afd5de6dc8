// The present state, as the server's watches send it.
import { computed, signal } from '@preact/signals'
import { Failure, get, lines, loginReason, open, reason, token } from './api'
import type { Conflict, Coverage, Finding, ListConflictsResponse, ListNodesResponse } from './types'

/** Connection says how current the shown state is. */
export interface Connection {
  state: 'connecting' | 'live' | 'lost'
  /** Since when it is in this state. */
  since: number
  /** Why it is lost. */
  why: string
}

export const connection = signal<Connection>({ state: 'connecting', since: Date.now(), why: '' })
/** What has changed while the connection was lost; empty if it was not, or the user has read it. */
export const caughtUp = signal('')
export const conflicts = signal<Map<string, Conflict>>(new Map())
export const findings = signal<Map<string, Finding>>(new Map())
export const coverage = signal<Coverage | undefined>(undefined)
export const nodes = signal<ListNodesResponse | undefined>(undefined)
/** Conflicts that had been resolved when the server was asked for them. */
const resolvedBefore = signal<Conflict[]>([])
const recentlyResolved = 20
/** Conflicts that were resolved, the newest first. */
export const resolved = computed(() => {
  const all = new Map(resolvedBefore.value.map((c) => [c.id, c]))
  for (const c of conflicts.value.values()) {
    if (c.state === 'RESOLVED') all.set(c.id, c)
    else all.delete(c.id)
  }
  return [...all.values()].sort((a, b) => (b.resolvedAt ?? '').localeCompare(a.resolvedAt ?? '')).slice(0, recentlyResolved)
})
/** Number of owners; undefined if it is not known. */
export const owners = signal<number | undefined>(undefined)

export const active = computed(() => [...conflicts.value.values()].filter((c) => c.state !== 'RESOLVED'))

interface Message<T> {
  type: string
  item?: T
  coverage?: Coverage
}

/** A Feed is one watch, and the items that it has sent. */
interface Feed<T extends { id: string }> {
  path: string
  /** The field of a message that has the item. */
  field: string
  items: { value: Map<string, T> }
  /** Takes the whole state after a connection. */
  complete?: (before: Map<string, T>, now: Map<string, T>) => void
}

// The server sends a bookmark every 15 s, so a connection that is silent for longer is dead.
const silentFor = 35_000
const firstPause = 300
const lastPause = 5_000

/** Follows a watch until stop is aborted. After a gap it reads the whole state again, because items that
 * a resumed watch sends have no steps to take. */
async function follow<T extends { id: string }>(feed: Feed<T>, stop: AbortSignal, main: boolean) {
  let pause = firstPause
  while (!stop.aborted) {
    const attempt = new AbortController()
    const abort = () => attempt.abort(new Error('the server is silent'))
    const end = () => attempt.abort()
    stop.addEventListener('abort', end)
    addEventListener('offline', abort)
    let silence = setTimeout(abort, silentFor)
    try {
      const response = await open(feed.path, {}, attempt.signal)
      let fresh: Map<string, T> | undefined = new Map() // until all of the state has arrived
      for await (const batch of lines(response)) {
        clearTimeout(silence)
        silence = setTimeout(abort, silentFor)
        const changed = fresh ? undefined : new Map(feed.items.value)
        let dirty = false
        for (const line of batch) {
          const m = parse<T>(line, feed.field)
          if (m.type === 'LOST') fresh = new Map()
          const into: Map<string, T> = fresh ?? changed ?? new Map(feed.items.value)
          if (m.item) {
            if (m.type === 'REMOVED') into.delete(m.item.id)
            else into.set(m.item.id, m.item)
            dirty = true
          }
          if (m.type === 'BOOKMARK') {
            if (fresh) {
              feed.complete?.(feed.items.value, fresh)
              feed.items.value = fresh
              fresh = undefined
              pause = firstPause
            }
            if (main) {
              if (m.coverage) coverage.value = m.coverage
              if (connection.value.state !== 'live') connection.value = { state: 'live', since: Date.now(), why: '' }
            }
          }
        }
        if (changed && dirty) feed.items.value = changed
      }
      throw new Error('the server closed the connection')
    } catch (error) {
      if (stop.aborted) return
      if (main && connection.value.state !== 'lost') connection.value = { state: 'lost', since: Date.now(), why: reason(error) }
      if (error instanceof Failure && error.status === 401) return // a token starts it again
    } finally {
      clearTimeout(silence)
      stop.removeEventListener('abort', end)
      removeEventListener('offline', abort)
      attempt.abort()
    }
    await sleep(pause, stop)
    pause = Math.min(pause * 2, lastPause)
  }
}

function parse<T>(line: string, field: string): Message<T> {
  const { result, error } = JSON.parse(line)
  if (error) throw new Failure(503, error.message)
  return { type: result.type, item: result[field], coverage: result.coverage }
}

/** Waits, but not longer than until the browser is online again or the page is shown. */
function sleep(ms: number, stop: AbortSignal): Promise<void> {
  return new Promise((done) => {
    const end = () => {
      clearTimeout(timer)
      removeEventListener('online', end)
      document.removeEventListener('visibilitychange', end)
      stop.removeEventListener('abort', end)
      done()
    }
    const timer = setTimeout(end, ms)
    addEventListener('online', end)
    document.addEventListener('visibilitychange', end)
    stop.addEventListener('abort', end)
  })
}

let seenBefore = false

/** Says what has changed while the connection was lost. */
function noteGap(before: Map<string, Conflict>, now: Map<string, Conflict>) {
  void readResolved()
  const gap = seenBefore && connection.value.state === 'lost'
  seenBefore = true
  if (!gap) return
  const appeared = [...now.values()].filter((c) => c.state !== 'RESOLVED' && before.get(c.id)?.episode !== c.episode).length
  const ended = [...before.values()].filter((c) => c.state !== 'RESOLVED' && (now.get(c.id)?.state ?? 'RESOLVED') === 'RESOLVED').length
  const seconds = Math.max(1, Math.round((Date.now() - connection.value.since) / 1000))
  caughtUp.value = `Reconnected after ${seconds} s: ` +
    (appeared + ended ? `meanwhile ${appeared} new and ${ended} resolved.` : 'no conflict began or ended meanwhile.')
}

async function readResolved() {
  try {
    const list = await get<ListConflictsResponse>('v1/conflicts', { all: 'true', state: 'RESOLVED' })
    resolvedBefore.value = list.conflicts
  } catch {
    // The watch reports the same error.
  }
}

/** Asks again and again, as long as the page is shown. */
async function poll(every: number, ask: () => Promise<void>, stop: AbortSignal) {
  while (!stop.aborted) {
    if (!document.hidden) {
      try {
        await ask()
      } catch {
        // The watch reports the same error.
      }
    }
    await sleep(every, stop)
  }
}

async function readNodes() {
  nodes.value = await get<ListNodesResponse>('v1/nodes')
  coverage.value = nodes.value.coverage ?? coverage.value
}

/** Reads the number of owners, which only the metrics have. */
async function readOwners() {
  try {
    let sum = 0
    let found = false
    for (const [, value] of (await (await open('metrics')).text()).matchAll(/^ipwitness_owners(?:\{[^}]*\})? (\S+)$/gm)) {
      sum += Number(value)
      found = true
    }
    owners.value = found ? sum : undefined
  } catch (error) {
    if (error instanceof Failure && error.status !== 401) owners.value = undefined // the user may not read metrics
  }
}

let running: AbortController | undefined

/** Follows the state from now on, and starts again when the token changes. */
export function start() {
  token.subscribe(() => {
    running?.abort()
    running = new AbortController()
    connection.value = { state: 'connecting', since: Date.now(), why: '' }
    const stop = running.signal
    void follow<Conflict>({ path: 'v1/conflicts:watch', field: 'conflict', items: conflicts, complete: noteGap }, stop, true)
    void whileShown((shown) => follow<Finding>({ path: 'v1/findings:watch', field: 'finding', items: findings }, shown, false), stop)
    void poll(3_000, readNodes, stop)
    void poll(15_000, readOwners, stop)
  })
}

/** Runs a watch only while the page is shown: with HTTP/1.1, a browser opens six connections to a
 * server, and hidden tabs must not use them up. The conflicts are watched always, for the title. */
async function whileShown(run: (stop: AbortSignal) => Promise<void>, stop: AbortSignal) {
  let shown: AbortController | undefined
  const change = () => {
    if (document.hidden) {
      shown?.abort()
      shown = undefined
    } else if (!shown && !stop.aborted) {
      shown = new AbortController()
      void run(shown.signal)
    }
  }
  document.addEventListener('visibilitychange', change)
  stop.addEventListener('abort', () => {
    document.removeEventListener('visibilitychange', change)
    shown?.abort()
  })
  change()
}

/** Whether the server wants a token, so that nothing can be shown. */
export const locked = computed(() => loginReason.value !== '')
