// A list of owners of any length: only the visible rows are in the document, and pages are read from
// the server as the user scrolls.
import { useEffect, useRef, useState } from 'preact/hooks'
import { get, reason, type Query } from '../api'
import { AddressLink, Ago, Badge, Empty, mark } from './basics'
import { active, connection } from '../live'
import { ms } from '../time'
import { ownerKind, ownerName, scopeText } from '../words'
import { to } from '../route'
import type { ListOwnersResponse, Owner } from '../types'

const rowHeight = 34, headHeight = 32
const columns = ['Address', 'Owner', 'Node', 'Scope', 'MAC', 'Seen']
const pageSize = 500
/** Rows that are drawn above and below the visible ones, and rows before the end at which the next page is read. */
const spare = 12, ahead = 150

interface Rows {
  rows: Owner[]
  next: string
  done: boolean
  error: string
}

const nothing: Rows = { rows: [], next: '', done: false, error: '' }

export function OwnerList({ query, at }: { query: Query; at: string | undefined }) {
  const key = JSON.stringify([query, at])
  const [data, setData] = useState<Rows & { key: string }>({ ...nothing, key })
  const [top, setTop] = useState(0)
  const [height, setHeight] = useState(600)
  const [selected, select] = useState(-1)
  const box = useRef<HTMLDivElement>(null)
  const current = data.key === key ? data : { ...nothing, key }
  const last = Math.ceil((top + height) / rowHeight)
  const wanted = !current.done && !current.error && last + ahead > current.rows.length

  useEffect(() => {
    if (!wanted) return
    const stop = new AbortController()
    get<ListOwnersResponse>('v1/owners', { ...query, at, page_size: pageSize, page_token: current.next }, stop.signal).then(
      (page) => setData({ key, rows: current.rows.concat(page.owners), next: page.nextPageToken, done: !page.nextPageToken, error: '' }),
      (error) => stop.signal.aborted || setData({ ...current, error: reason(error) }),
    )
    return () => stop.abort()
  }, [key, wanted, current.next])

  // A page that failed is read again when the server is back.
  const live = connection.value.state === 'live'
  const retry = () => setData((d) => (d.error ? { ...d, error: '' } : d))
  useEffect(() => {
    if (live) retry()
  }, [live])

  useEffect(() => {
    box.current?.scrollTo(0, 0)
    select(-1)
  }, [key])

  useEffect(() => {
    const measure = new ResizeObserver(() => setHeight(box.current!.clientHeight))
    measure.observe(box.current!)
    return () => measure.disconnect()
  }, [])

  const move = (event: KeyboardEvent) => {
    const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: 15, PageUp: -15 }[event.key]
    if (event.key === 'Enter' && current.rows[selected]) location.hash = to('address', current.rows[selected].address, at ? { at } : {})
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return
    event.preventDefault()
    event.stopPropagation()
    const index = Math.max(0, Math.min(current.rows.length - 1, selected + step))
    select(index)
    const el = box.current!
    if (index * rowHeight < el.scrollTop) el.scrollTop = index * rowHeight
    const bottom = headHeight + (index + 1) * rowHeight
    if (bottom > el.scrollTop + el.clientHeight) el.scrollTop = bottom - el.clientHeight
  }

  const held = new Set(active.value.map((c) => c.address))
  const first = Math.max(0, Math.floor(top / rowHeight) - spare)
  const shown = current.rows.slice(first, last + spare)
  return (
    <>
      <p class="small muted" aria-live="polite" data-loaded={current.rows.length} data-done={current.done}>
        {current.rows.length.toLocaleString('en-US')} owners{current.done ? '' : current.error ? '' : ' so far: scroll for more'}
        {current.error && <><b class="error"> {current.error}</b> <button type="button" class="link" onClick={retry}>Retry</button></>}
      </p>
      <div ref={box} class="ownerlist" role="grid" aria-label="Owners" aria-rowcount={current.done ? current.rows.length : -1} tabIndex={0}
        aria-activedescendant={selected >= first && selected < first + shown.length ? `owner-${selected}` : undefined}
        onScroll={(e) => setTop(e.currentTarget.scrollTop)} onKeyDown={move}>
        <div class="ownerlist-head" role="row">{columns.map((c) => <span role="columnheader">{c}</span>)}</div>
        <div class="ownerlist-space" role="presentation" style={{ height: `${current.rows.length * rowHeight}px` }}>
          <div role="presentation" style={{ transform: `translateY(${first * rowHeight}px)` }}>
            {shown.map((o, i) => <OwnerRow key={first + i} index={first + i} owner={o} at={at} held={held.has(o.address)} selected={first + i === selected} />)}
          </div>
        </div>
      </div>
      {current.done && !current.rows.length && <Empty>{at ? 'No owner matched at that time.' : 'No owner matches.'}</Empty>}
    </>
  )
}

function OwnerRow({ index, owner: o, at, held, selected }: { index: number; owner: Owner; at: string | undefined; held: boolean; selected: boolean }) {
  const m = mark('CONFIRMED')
  return (
    <div id={`owner-${index}`} class={`ownerrow ${selected ? 'selected' : ''}`} role="row" aria-rowindex={index + 1} aria-selected={selected}>
      <span role="gridcell"><AddressLink address={o.address} {...(at ? { at } : {})} />{held && !at && <b class="bad-text" title="held twice"> {m.shape}<span class="sr"> held twice</span></b>}</span>
      <span role="gridcell" title={`${ownerKind(o)} ${ownerName(o)}`}>{ownerName(o)} {o.state !== 'LIVE' && <Badge state={o.state} />}</span>
      <span role="gridcell" title={o.node}>{o.node}</span>
      <span role="gridcell" title={scopeText(o.scope)}>{scopeText(o.scope)}</span>
      <span role="gridcell" class="mono">{o.mac}</span>
      <span role="gridcell" class="muted"><Ago at={ms(o.lastSeen)} /></span>
    </div>
  )
}
