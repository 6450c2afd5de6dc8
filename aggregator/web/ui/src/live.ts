// The present state, as the server's watches send it.
import { computed, signal } from '@preact/signals'
import { Failure, get, lines, open, pages, reason, token } from './api'
import { crowded, meet } from './crowd'
import { ms } from './time'
import { advance, type Message, type State } from './watch'
import type { Conflict, Coverage, Finding, ListConflictsResponse, ListNodesResponse, Node } from './types'

/** Connection says how current a part of the shown state is. */
export interface Connection {
  state: 'connecting' | 'live' | 'lost'
  /** Since when it is in this state. */
  since: number
  /** Why it is lost. */
  why: string
}

const connecting = (): Connection => ({ state: 'connecting', since: Date.now(), why: '' })
/** The connection that the conflicts come from. */
export const connection = signal(connecting())
export const findingsConnection = signal(connecting())
export const nodesConnection = signal(connecting())
/** What has changed while the connection was lost; empty if it was not, or the user has read it. */
export const caughtUp = signal('')
export const conflicts = signal<Map<string, Conflict>>(new Map())
export const findings = signal<Map<string, Finding>>(new Map())
/** Whether all conflicts or findings have been read once: until then, none does not mean zero. */
export const conflictsKnown = signal(false)
export const findingsKnown = signal(false)
export const coverage = signal<Coverage | undefined>(undefined)
const nodeItems = signal<Map<string, Node>>(new Map())
/** What is known besides the nodes; undefined until all nodes have been read once. */
const situation = signal<Situation | undefined>(undefined)
type Situation = Pick<ListNodesResponse, 'kubernetes' | 'problems'>
export const nodes = computed(() => situation.value && { ...situation.value, nodes: [...nodeItems.value.values()] })
/** Conflicts that had been resolved when the server was asked for them. */
const resolvedBefore = signal<Conflict[]>([])
const recentlyResolved = 20
/** Pages of resolved conflicts that are read at most. The server orders them by address, not by time. */
const mostResolvedPages = 20
/** Conflicts that were resolved, the newest first. */
export const resolved = computed(() => {
  const all = new Map(resolvedBefore.value.map((c) => [c.id, c]))
  for (const c of conflicts.value.values()) {
    if (c.state === 'RESOLVED') all.set(c.id, c)
    else all.delete(c.id)
  }
  return newestResolved([...all.values()])
})
const newestResolved = (all: Conflict[]) => all.sort((a, b) => ms(b.resolvedAt) - ms(a.resolvedAt)).slice(0, recentlyResolved)
/** Number of owners; undefined if it is not known. */
export const owners = signal<number | undefined>(undefined)

export const active = computed(() => [...conflicts.value.values()].filter((c) => c.state !== 'RESOLVED'))

/** A Feed is one watch, and the items that it has sent. */
interface Feed<T> {
  path: string
  /** The field of a message that has the item. */
  field: string
  /** What identifies an item. */
  key: (item: T) => string
  items: { value: Map<string, T> }
  connection: { value: Connection }
  /** Called with the whole state, before it is shown. */
  complete?: (before: Map<string, T>, now: Map<string, T>) => void
  /** Called with each bookmark, after the items before it are shown. */
  marked?: (m: Bookmark) => void
}

/** What a bookmark says besides the position of the watch. The watch of nodes has all fields. */
type Bookmark = { coverage?: Coverage } & Situation

// The server sends a bookmark every 15 s, so a connection that is silent for longer is dead.
const silentFor = 35_000
const firstPause = 300
const lastPause = 5_000

/** Follows a watch until stop is aborted. After a gap it reads the whole state again, because items that
 * a resumed watch sends have no steps to take. */
async function follow<T>(feed: Feed<T>, stop: AbortSignal) {
  if (feed.connection.value.state === 'live') report(feed.connection, 'connecting') // the tab was hidden
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
      let state: State<T> = { current: feed.items.value, fresh: new Map() }
      for await (const batch of lines(response)) {
        clearTimeout(silence)
        silence = setTimeout(abort, silentFor)
        const messages = batch.map((line) => parse(line, feed))
        const next = advance(state, messages)
        state = next
        if (next.completed) {
          feed.complete?.(feed.items.value, next.current)
          pause = firstPause
        }
        feed.items.value = next.current
        for (const m of messages) if (m.type === 'BOOKMARK') feed.marked?.(m.bookmark)
        if (!next.fresh) report(feed.connection, 'live')
      }
      throw new Error('the server closed the connection')
    } catch (error) {
      if (stop.aborted) return
      report(feed.connection, 'lost', reason(error))
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

/** Sets the state of a connection, and keeps the time since when it is in this state. */
function report(c: { value: Connection }, state: Connection['state'], why = '') {
  if (c.value.state !== state || c.value.why !== why) c.value = { state, since: c.value.state === state ? c.value.since : Date.now(), why }
}

function parse<T>(line: string, feed: Feed<T>): Message<T> & { bookmark: Bookmark } {
  const { result, error } = JSON.parse(line)
  if (error) throw new Failure(503, error.message)
  const item = result[feed.field]
  return { type: result.type, item, key: item ? feed.key(item) : '', bookmark: result }
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

/** Says what has changed while the connection was lost. */
function noteGap(before: Map<string, Conflict>, now: Map<string, Conflict>) {
  void readResolved()
  const gap = conflictsKnown.value && connection.value.state === 'lost'
  conflictsKnown.value = true
  if (!gap) return
  const appeared = [...now.values()].filter((c) => c.state !== 'RESOLVED' && before.get(c.id)?.episode !== c.episode).length
  const ended = [...before.values()].filter((c) => c.state !== 'RESOLVED' && (now.get(c.id)?.state ?? 'RESOLVED') === 'RESOLVED').length
  const seconds = Math.max(1, Math.round((Date.now() - connection.value.since) / 1000))
  caughtUp.value = `Reconnected after ${seconds} s: ` +
    (appeared + ended ? `meanwhile ${appeared} new and ${ended} resolved.` : 'no conflict began or ended meanwhile.')
}

async function readResolved() {
  try {
    let newest: Conflict[] = []
    for await (const page of pages<ListConflictsResponse>('v1/conflicts', { all: 'true', state: 'RESOLVED', page_size: 10000 }, mostResolvedPages)) {
      newest = newestResolved(newest.concat(page.conflicts))
    }
    resolvedBefore.value = newest
  } catch {
    // The watch reports the same error.
  }
}

/** Asks again and again, as long as the page is shown. It waits for each answer before it asks again. */
export async function poll(every: number, ask: () => Promise<unknown>, stop: AbortSignal) {
  while (!stop.aborted) {
    if (!document.hidden) {
      try {
        await ask()
      } catch {
        // ask reports its errors, or the watch reports the same ones.
      }
    }
    await sleep(every, stop)
  }
}

/** Follows the nodes. If connections are scarce, it asks for them instead. */
function followNodes(stop: AbortSignal) {
  const mark = ({ coverage: c, kubernetes, problems }: Bookmark) => {
    situation.value = kubernetes ? { kubernetes, problems } : { problems }
    coverage.value = c ?? coverage.value
  }
  const read = async () => {
    try {
      const list = await get<ListNodesResponse>('v1/nodes')
      nodeItems.value = new Map(list.nodes.map((n) => [n.name, n]))
      mark(list)
      report(nodesConnection, 'live')
    } catch (error) {
      report(nodesConnection, 'lost', reason(error))
    }
  }
  let attempt: AbortController | undefined
  const end = crowded.subscribe((many) => {
    attempt?.abort()
    attempt = new AbortController()
    void (many ? poll(3_000, read, attempt.signal)
      : follow<Node>({ path: 'v1/nodes:watch', field: 'node', key: (n) => n.name, items: nodeItems, connection: nodesConnection, marked: mark }, attempt.signal))
  })
  stop.addEventListener('abort', () => {
    end()
    attempt?.abort()
  })
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
  meet()
  token.subscribe(() => {
    running?.abort()
    running = new AbortController()
    for (const c of [connection, findingsConnection, nodesConnection]) c.value = connecting()
    const stop = running.signal
    const byId = (item: { id: string }) => item.id
    const covered = ({ coverage: c }: Bookmark) => (coverage.value = c ?? coverage.value)
    void follow<Conflict>({ path: 'v1/conflicts:watch', field: 'conflict', key: byId, items: conflicts, connection, complete: noteGap, marked: covered }, stop)
    whileShown((shown) => {
      void follow<Finding>({ path: 'v1/findings:watch', field: 'finding', key: byId, items: findings, connection: findingsConnection, complete: () => (findingsKnown.value = true) }, shown)
      followNodes(shown)
    }, stop)
    void poll(15_000, readOwners, stop)
  })
}

/** Runs watches only while the page is shown: with HTTP/1.1, a browser opens six connections to a
 * server, and hidden tabs must not use them up. The conflicts are watched always, for the title. */
function whileShown(run: (stop: AbortSignal) => void, stop: AbortSignal) {
  let shown: AbortController | undefined
  const change = () => {
    if (document.hidden) {
      shown?.abort()
      shown = undefined
    } else if (!shown && !stop.aborted) {
      shown = new AbortController()
      run(shown.signal)
    }
  }
  document.addEventListener('visibilitychange', change)
  stop.addEventListener('abort', () => {
    document.removeEventListener('visibilitychange', change)
    shown?.abort()
  })
  change()
}
