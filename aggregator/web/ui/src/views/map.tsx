// Where things are: networks and broadcast domains with their owners, nodes, and conflicts between them.
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'
import { get, reason } from '../api'
import { Ago, Badge, Empty } from '../parts/basics'
import { OwnerList } from '../parts/ownerlist'
import { active, nodes, poll } from '../live'
import { ms } from '../time'
import { compareAddresses, count } from '../words'
import { refine, route, to } from '../route'
import type { Conflict, ListOwnersResponse, Node } from '../types'

/** More owners than this are not counted. */
const mostOwners = 100_000

/** A Segment is a network, a broadcast domain or a node: a place in which addresses are unique. */
interface Segment {
  kind: string
  name: string
  owners: number
  /** Number of owners on each node. */
  nodes: Map<string, number>
}

interface Census {
  segments: Map<string, Segment>
  counted: number
  done: boolean
  error: string
}

const segmentKey = (kind: string, name: string) => `${kind}/${name}`
const kindWords: Record<string, string> = { NETWORK: 'network', LINK: 'broadcast domain', NODE: 'node only', NONE: 'not compared' }
const kindOrder = ['NETWORK', 'LINK', 'NODE', 'NONE']

/** Counts the owners page by page, and shows what is counted so far. */
function useCensus(): Census {
  const [census, set] = useState<Census>({ segments: new Map(), counted: 0, done: false, error: '' })
  useEffect(() => {
    const stop = new AbortController()
    const segments = new Map<string, Segment>()
    let counted = 0
    const run = async () => {
      let token = ''
      do {
        const page = await get<ListOwnersResponse>('v1/owners', { page_size: 1000, page_token: token }, stop.signal)
        for (const o of page.owners) {
          const compared = o.scope && o.scope.kind !== 'UNSPECIFIED'
          // What is unique on one node only is one segment for all nodes: thousands of them say nothing.
          const kind = compared ? o.scope!.kind : 'NONE'
          const name = kind === 'NODE' || kind === 'NONE' ? '' : o.scope!.name
          const key = segmentKey(kind, name)
          const s = segments.get(key) ?? { kind, name, owners: 0, nodes: new Map<string, number>() }
          segments.set(key, s)
          s.owners++
          s.nodes.set(o.node, (s.nodes.get(o.node) ?? 0) + 1)
        }
        counted += page.owners.length
        token = page.nextPageToken
        // Rows are drawn again only if their objects are new.
        set({ segments: new Map([...segments].map(([key, s]) => [key, { ...s }])), counted, done: !token, error: '' })
      } while (token && counted < mostOwners)
    }
    run().catch((e) => stop.signal.aborted || set({ segments, counted, done: false, error: reason(e) }))
    return () => stop.abort()
  }, [])
  return census
}

/** The link of each pod with its node is a broadcast domain of its own: they are shown as one. */
function folded(segments: Map<string, Segment>): Segment[] {
  const out: Segment[] = []
  const links: Segment = { kind: 'LINK', name: '', owners: 0, nodes: new Map() }
  for (const s of segments.values()) {
    if (s.kind !== 'LINK' || s.nodes.size > 1 || s.owners > 2) {
      out.push(s)
      continue
    }
    links.owners += s.owners
    for (const [node, n] of s.nodes) links.nodes.set(node, (links.nodes.get(node) ?? 0) + n)
  }
  return links.owners ? [...out, links] : out
}

/** The name of a segment, or what segments without a name have in common. */
const segmentName = (s: Segment) => s.name || { LINK: 'links of single pods', NODE: 'unique on each node', NONE: 'such as 127.0.0.1' }[s.kind] || ''

const shortNames: Record<string, string> = { LINK: 'links of pods', NODE: 'node only', NONE: 'not compared' }

const segmentTitle = (s: Segment) => `${kindWords[s.kind]} ${segmentName(s)}`

export function Map_() {
  const census = useCensus()
  const list = (nodes.value?.nodes ?? []).toSorted((a, b) => compareAddresses(a.name, b.name))
  const { subject, query } = route.value
  const picked = query.get('in') ?? ''
  const chosen = list.find((n) => n.name === subject)
  const all = folded(census.segments).sort((a, b) => kindOrder.indexOf(a.kind) - kindOrder.indexOf(b.kind) || b.owners - a.owners)
  const segment = all.find((s) => segmentKey(s.kind, s.name) === picked)
  return (
    <>
      <h1>Map <span class="muted">— {nodes.value ? count(list.length, 'node', 'nodes') : 'nodes unknown'}, {census.counted || census.done ? count(census.counted, 'owner', 'owners') : 'owners unknown'}{census.done || !census.counted ? '' : census.counted >= mostOwners ? ' counted, and more' : ' so far'}</span></h1>
      {census.error && <p class="error" role="alert">{census.error}</p>}
      <div class="map">
        <section aria-label="Networks and broadcast domains" class="segments">
          <h2>Networks and domains</h2>
          <ul class="plain">
            {all.slice(0, 60).map((s) => <SegmentRow key={segmentKey(s.kind, s.name)} segment={s} picked={s === segment} />)}
          </ul>
          {all.length > 60 && <p class="small muted">The 60 largest of {all.length.toLocaleString('en-US')} are shown.</p>}
        </section>
        <section aria-label="Nodes" class="grow">
          <h2>Nodes{segment && <span class="muted"> — in {segmentTitle(segment)} <button type="button" class="link" onClick={() => refine({ in: '' })}>show all</button></span>}</h2>
          {nodes.value && !list.length && <Empty>No agent has reported.</Empty>}
          <Grid list={list} segments={all} segment={segment} chosen={subject} />
          <p class="legend small muted"><span><Badge state="LIVE" /></span> <span><Badge state="PROBLEM" word="has a problem" /></span> <span><Badge state="DISCONNECTED" /></span> <span><b class="bad-text">✖ n</b> addresses held twice; a line joins the nodes that hold the same address</span></p>
        </section>
      </div>
      {chosen && <Detail node={chosen} />}
      {subject && !chosen && nodes.value && <Empty>No agent has reported for node {subject}.</Empty>}
    </>
  )
}

function SegmentRow({ segment: s, picked }: { segment: Segment; picked: boolean }) {
  const held = conflictsIn(s).length
  const key = segmentKey(s.kind, s.name)
  return (
    <li>
      <button type="button" class={`segment ${picked ? 'picked' : ''}`} aria-pressed={picked} onClick={() => refine({ in: picked ? '' : key })}>
        <span class="small muted">{kindWords[s.kind]}</span>
        <b class="wrap">{segmentName(s)}</b>
        <span>{count(s.owners, 'owner', 'owners')} on {count(s.nodes.size, 'node', 'nodes')}{held > 0 && <b class="bad-text"> · ✖ {held} held twice</b>}</span>
      </button>
    </li>
  )
}

const conflictsIn = (s: Segment) => active.value.filter((c) => c.scope && c.scope.kind === s.kind && (s.name === '' || c.scope.name === s.name))

/** The tiles of the nodes, which are smaller the more there are. */
function Grid({ list, segments, segment, chosen }: { list: Node[]; segments: Segment[]; segment: Segment | undefined; chosen: string }) {
  const box = useRef<HTMLDivElement>(null)
  const on = new Map<string, Conflict[]>()
  for (const c of active.value) for (const n of new Set(c.owners.map((o) => o.node))) {
    const there = on.get(n)
    if (there) there.push(c)
    else on.set(n, [c])
  }
  const size = list.length <= 30 ? 'large' : list.length <= 120 ? 'medium' : 'small'
  return (
    <div class={`nodes ${size}`} ref={box}>
      {list.map((n) => (
        <Tile key={n.name} node={n} size={size} conflicts={on.get(n.name) ?? []} segments={size === 'large' ? segments.filter((s) => s.nodes.has(n.name)) : []}
          dim={segment !== undefined && !segment.nodes.has(n.name)} chosen={n.name === chosen} />
      ))}
      <Lines box={box} size={size} nodes={list.length} />
    </div>
  )
}

function Tile({ node: n, size, conflicts, segments, dim, chosen }: { node: Node; size: string; conflicts: Conflict[]; segments: Segment[]; dim: boolean; chosen: boolean }) {
  const state = n.state !== 'LIVE' ? 'DISCONNECTED' : n.problems.length || n.incomplete || n.flooding.length ? 'PROBLEM' : 'LIVE'
  const held = new Set(conflicts.map((c) => c.address)).size
  const words = { DISCONNECTED: 'disconnected', PROBLEM: 'has a problem', LIVE: 'live' }[state]
  const text = `${n.name}: ${words}, ${n.namespaces} namespaces${held ? `, ${held} addresses held twice` : ''}`
  const query = route.value.query.get('in') ?? ''
  return (
    <a href={to('map', chosen ? '' : n.name, { in: query })} class={`tile ${state.toLowerCase()} ${held ? 'held' : ''} ${dim ? 'dim' : ''} ${chosen ? 'chosen' : ''}`} data-node={n.name} title={text} aria-label={size === 'small' ? text : undefined} aria-current={chosen}>
      {size === 'small'
        ? <span aria-hidden="true">{held ? '✖' : state === 'DISCONNECTED' ? '○' : state === 'PROBLEM' ? '◆' : ''}</span>
        : <>
          <span class="name">{n.name}</span>
          {size === 'large' && segments.slice(0, 4).map((s) => <span class="small muted chip">{s.nodes.get(n.name)} · {s.name || shortNames[s.kind]}</span>)}
          <span class="foot">{state !== 'LIVE' && <Badge state={state} />}{held > 0 && <b class="bad-text">✖ {held}</b>}</span>
        </>}
    </a>
  )
}

interface Line { path: string; label: string; id: string }

/** Joins the tiles of nodes that hold the same address. */
function Lines({ box, size, nodes: total }: { box: { current: HTMLDivElement | null }; size: string; nodes: number }) {
  const [lines, set] = useState<Line[]>([])
  const [shape, setShape] = useState('')
  const between = active.value.filter((c) => new Set(c.owners.map((o) => o.node)).size > 1)
  const key = between.map((c) => c.id + c.owners.map((o) => o.node).join()).join()
  useLayoutEffect(() => {
    const measure = new ResizeObserver(() => setShape(`${box.current?.clientWidth} ${box.current?.clientHeight}`))
    measure.observe(box.current!)
    return () => measure.disconnect()
  }, [])
  useLayoutEffect(() => {
    const frame = box.current!.getBoundingClientRect()
    const middle = (name: string) => {
      const r = box.current!.querySelector(`[data-node="${CSS.escape(name)}"]`)?.getBoundingClientRect()
      return r && { x: r.left + r.width / 2 - frame.left, y: r.top - frame.top }
    }
    const seen = new Set<string>()
    set(between.flatMap((c) => {
      const names = [...new Set(c.owners.map((o) => o.node))]
      return names.slice(1).flatMap((name) => {
        const pair = [names[0]!, name].sort().join()
        const a = middle(names[0]!), b = middle(name)
        if (!a || !b || seen.has(pair)) return []
        seen.add(pair)
        return [{ path: `M ${a.x} ${a.y} Q ${(a.x + b.x) / 2} ${(a.y + b.y) / 2 - 28} ${b.x} ${b.y}`, label: c.address, id: c.id + name }]
      })
    }))
  }, [key, shape, size, total])
  return (
    <svg class="joins" aria-hidden="true">
      {lines.map((l) => <path key={l.id} d={l.path}><title>{l.label}</title></path>)}
    </svg>
  )
}

/** The watch does not send the values that change all the time, so the node that is shown is read again. */
function Detail({ node }: { node: Node }) {
  const panel = useRef<HTMLElement>(null)
  const [latest, setLatest] = useState<Node>()
  const n = latest?.name === node.name && latest.state === node.state ? latest : node
  useEffect(() => {
    const stop = new AbortController()
    void poll(readEvery, async () => setLatest(await get<Node>(`v1/nodes/${encodeURIComponent(node.name)}`, {}, stop.signal)), stop.signal)
    return () => stop.abort()
  }, [node])
  useEffect(() => panel.current?.scrollIntoView({ block: 'nearest' }), [n.name])
  return (
    <section class="card" aria-label={`Node ${n.name}`} ref={panel}>
      <header><Badge state={n.state} /><h2>{n.name}</h2><span class="end muted">heard <Ago at={ms(n.lastHeard)} /></span></header>
      <dl class="facts">
        <dt>version</dt><dd>{n.version}</dd>
        <dt>kernel</dt><dd>{n.kernel}</dd>
        <dt>frames</dt><dd>{n.wire === 'off' ? 'not observed' : `${n.wire}, ${count(n.ports, 'port', 'ports')}`}</dd>
        <dt>namespaces</dt><dd>{n.namespaces}</dd>
        {n.runtime && <><dt>runtime</dt><dd>{n.runtime}</dd></>}
        <dt>lag, skew</dt><dd>{milliseconds(n.lag)}, {milliseconds(n.skew)}</dd>
        {n.lostEvents > 0 && <><dt>lost events</dt><dd>{n.lostEvents}</dd></>}
      </dl>
      {n.problems.map((p) => <p class="banner warn wrap">{p}</p>)}
      {n.incomplete && <p class="banner warn">{Number(n.leftOut).toLocaleString('en-US')} records of this node are left out: the memory budget is used up.</p>}
      <h3>Owners</h3>
      <OwnerList query={{ node: n.name }} at={undefined} />
    </section>
  )
}

const readEvery = 5000
const milliseconds = (d: string | undefined) => (d === undefined ? '–' : `${(parseFloat(d) * 1000).toFixed(1)} ms`)
