// Pools of IPAMs: how full they are, and where their records differ from who holds what.
import { useEffect, useState } from 'preact/hooks'
import { get, reason } from '../api'
import { Badge, Command, Empty } from '../parts/basics'
import { FindingGroups } from '../parts/finding'
import { Chart, Trend, useOf, type Use } from '../parts/trend'
import { findings, findingsKnown, poll } from '../live'
import { duration, now } from '../time'
import { compareAddresses, count, ipamKinds } from '../words'
import { refine, route, to } from '../route'
import type { Finding, ListPoolsResponse, Pool } from '../types'

/** How often the pools are read, and how often their use over time, which is much more to read. */
const pollEvery = 5_000, historyEvery = 60_000
const mostRows = 500

interface Pools {
  /** Undefined if they could not be read yet. */
  pools: Pool[] | undefined
  /** The time at which the pools were read. */
  at: number
  error: string
}

const keyOf = (p: Pool) => [p.ipam, p.node, p.name].join('|')

async function readPools(signal: AbortSignal, history = false): Promise<Pool[]> {
  const pools: Pool[] = []
  let token = ''
  do {
    const page = await get<ListPoolsResponse>('v1/pools', { page_token: token, page_size: 10000, history: history ? 'true' : undefined }, signal)
    pools.push(...page.pools)
    token = page.nextPageToken
  } while (token)
  return pools
}

/** The share of a pool that is allocated; undefined if its size is unknown. */
const share = (p: Pool) => (Number(p.size) ? Number(p.allocated) / Number(p.size) : undefined)

const badness = (p: Pool) => (p.state === 'MISSING' || p.state === 'UNREADABLE' ? 3 : 0) + (p.exhaustedIn ? 1 : 0) + (share(p) ?? 0)

export function Ipam() {
  const [data, setData] = useState<Pools>()
  /** Undefined until they are read: before that, nothing is said about the use over time. */
  const [histories, setHistories] = useState<Map<string, Pool['history']>>()
  useEffect(() => {
    const stop = new AbortController()
    const ask = () => readPools(stop.signal).then(
      (pools) => setData({ pools, at: now.value, error: '' }),
      (e) => stop.signal.aborted || setData((before) => ({ pools: before?.pools, at: before?.at ?? 0, error: reason(e) })))
    const askHistory = async () => setHistories(new Map((await readPools(stop.signal, true)).map((p) => [keyOf(p), p.history])))
    void poll(pollEvery, ask, stop.signal)
    void poll(historyEvery, askHistory, stop.signal)
    return () => stop.abort()
  }, [])
  const about = [...findings.value.values()].filter((f) => ipamKinds.has(f.kind))
  const leaked = about.filter((f) => f.kind === 'leaked')
  const atRisk = new Set(about.filter((f) => f.severity === 'CRITICAL').flatMap((f) => (f.addresses.length ? f.addresses : f.address && !f.address.includes('/') ? [f.address] : [])))
  const fixes = about.flatMap((f) => f.fixes)
  const pools = data?.pools?.toSorted((a, b) => badness(b) - badness(a) || compareAddresses(a.node, b.node)) ?? []
  const rows = pools.slice(0, mostRows).map((p) => ({ pool: p, use: histories && useOf(p, histories.get(keyOf(p)) ?? [], data!.at) }))
  const from = Math.min(...rows.map((r) => r.use?.points[0]!.at ?? Infinity))
  const minutes = Math.round(((data?.at ?? 0) - from) / 60_000)
  const allocated = pools.reduce((n, p) => n + Number(p.allocated), 0)
  return (
    <>
      <h1>IPAM</h1>
      {data?.error && <p class="error" role="alert">{data.error}</p>}
      <div class="stats">
        <Stat value={data?.pools && pools.length} text={pools.length === 1 ? 'pool' : 'pools'} />
        <Stat value={data?.pools && allocated} text="allocated" />
        <Stat value={findingsKnown.value ? atRisk.size : undefined} text="at risk of a duplicate" tone={atRisk.size ? 'bad' : ''} />
        <Stat value={findingsKnown.value ? leaked.length : undefined} text="leaked" tone={leaked.length ? 'warn' : ''} />
      </div>
      {fixes.length > 0 && <Plan findings={about} manual={fixes.filter((f) => f.manual).length} all={fixes.length} />}
      {about.length > 0 && <section aria-label="Findings"><h2>Where IPAM and the kernels differ</h2><FindingGroups findings={about} open={route.value.subject} /></section>}
      <section aria-label="Pools">
        <h2>Pools</h2>
        {data && !pools.length && !data.error && <Empty>No IPAM with records that ipwitness reads is known. <code>ipwitness doctor</code> says what this host has.</Empty>}
        {pools.length > 0 && <div class="scroll"><table class="pools">
          <thead><tr><th>State</th><th>IPAM</th><th>Pool</th><th>Node</th><th>Use</th><th class="num">Allocated</th><th class="num">Leaked</th><th>Trend{minutes > 0 && ` of ${duration(minutes * 60_000)}`}</th></tr></thead>
          <tbody>{rows.map(({ pool, use }) => <Row key={keyOf(pool)} pool={pool} use={use} from={from} />)}</tbody>
        </table></div>}
        {pools.length > mostRows && <p class="small muted">The {mostRows} fullest of {pools.length.toLocaleString('en-US')} pools are shown.</p>}
      </section>
    </>
  )
}

/** A figure, or a dash if it is not known. */
function Stat({ value, text, tone = '' }: { value: number | undefined; text: string; tone?: string }) {
  return <div class={`stat ${tone}`}><b>{value?.toLocaleString('en-US') ?? '–'}</b> <span>{text}</span></div>
}

/** The plan is made by the command, because it also checks each step before it is carried out. */
function Plan({ findings: about, manual, all }: { findings: Finding[]; manual: number; all: number }) {
  const kinds = [...new Set(about.filter((f) => f.fixes.length).map((f) => f.kind))]
  return (
    <section class="card plan" aria-label="Plan">
      <h2>The plan</h2>
      <p>{count(all, 'repair', 'repairs')}{manual > 0 && `, ${manual} of them by hand`}. The plan is a shell script that checks each step before it changes anything. Write it, read it, then run it:</p>
      <Command text={'ipwitness audit --fix-plan > plan.sh\nless plan.sh\nsh plan.sh'} />
      {kinds.length > 1 && <details><summary>Only one kind of finding</summary>{kinds.map((k) => <Command text={`ipwitness audit --kind ${k} --fix-plan > plan.sh`} />)}</details>}
    </section>
  )
}

/** The row of a pool. The link of the view says whose chart is shown. */
function Row({ pool: p, use, from }: { pool: Pool; use: Use | undefined; from: number }) {
  const used = share(p)
  const tone = used === undefined ? '' : used >= 0.9 ? 'bad' : used >= 0.75 ? 'warn' : ''
  const open = route.value.query.get('pool') === keyOf(p)
  return (
    <>
      <tr>
        <td><Badge state={p.state} /></td>
        <td>{p.ipam}</td>
        <td class="mono wrap name">{p.name}{p.ranges.length > 0 && <div class="small muted">{p.ranges.slice(0, 3).map((r) => <a href={to('address', '', { q: r.includes('/') ? r : r.split('-')[0]! })}>{r}</a>)}</div>}</td>
        <td>{p.node ? <a href={to('map', p.node)}>{p.node}</a> : 'cluster'}</td>
        <td class="use">{used === undefined ? <span class="muted">size unknown</span> : <><meter class={tone} min={0} max={1} value={used} aria-label={`${Math.round(used * 100)} % of ${p.name} allocated`} /> <span>{used < 0.01 && used > 0 ? '<1' : Math.round(used * 100)} %</span></>}</td>
        <td class="num" data-label="allocated">{Number(p.allocated).toLocaleString('en-US')}{Number(p.size) > 0 && <span class="muted"> / {Number(p.size).toLocaleString('en-US')}</span>}</td>
        <td class="num" data-label="leaked">{Number(p.leaked) || '–'}</td>
        <td>{use ? <Trend use={use} name={p.name} from={from} open={open} onOpen={() => refine({ pool: open ? '' : keyOf(p) })} /> : '–'}</td>
      </tr>
      {open && use && <tr class="of"><td colSpan={8}><Chart use={use} name={p.name} /></td></tr>}
    </>
  )
}
