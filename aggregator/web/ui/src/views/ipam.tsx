// Pools of IPAMs: how full they are, and where their records differ from who holds what.
import { useEffect, useState } from 'preact/hooks'
import { get, reason } from '../api'
import { Badge, Command, Empty } from '../parts/basics'
import { FindingGroups } from '../parts/finding'
import { findings, findingsKnown, poll } from '../live'
import { duration, fromDuration } from '../time'
import { compareAddresses, count, ipamKinds } from '../words'
import { route, to } from '../route'
import type { Finding, ListPoolsResponse, Pool } from '../types'

const pollEvery = 5000
/** Measurements that the trend of a pool is drawn from, while the page is open. */
const mostSamples = 60

interface Pools {
  /** Undefined if they could not be read yet. */
  pools: Pool[] | undefined
  error: string
  samples: Map<string, number[]>
}

const keyOf = (p: Pool) => [p.ipam, p.node, p.name].join('|')

async function readPools(signal: AbortSignal): Promise<Pool[]> {
  const pools: Pool[] = []
  let token = ''
  do {
    const page = await get<ListPoolsResponse>('v1/pools', { page_token: token, page_size: 10000 }, signal)
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
  useEffect(() => {
    const stop = new AbortController()
    const ask = () => readPools(stop.signal).then(
      (pools) => setData((before) => {
        const samples = new Map<string, number[]>()
        for (const p of pools) samples.set(keyOf(p), [...(before?.samples.get(keyOf(p)) ?? []), Number(p.allocated)].slice(-mostSamples))
        return { pools, samples, error: '' }
      }),
      (e) => stop.signal.aborted || setData((before) => ({ pools: before?.pools, samples: before?.samples ?? new Map(), error: reason(e) })))
    void poll(pollEvery, ask, stop.signal)
    return () => stop.abort()
  }, [])
  const about = [...findings.value.values()].filter((f) => ipamKinds.has(f.kind))
  const leaked = about.filter((f) => f.kind === 'leaked')
  const atRisk = new Set(about.filter((f) => f.severity === 'CRITICAL').flatMap((f) => (f.addresses.length ? f.addresses : f.address && !f.address.includes('/') ? [f.address] : [])))
  const fixes = about.flatMap((f) => f.fixes)
  const pools = data?.pools?.toSorted((a, b) => badness(b) - badness(a) || compareAddresses(a.node, b.node)) ?? []
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
        {pools.length > 0 && <div class="scroll"><table>
          <thead><tr><th>State</th><th>IPAM</th><th>Pool</th><th>Node</th><th>Use</th><th class="num">Allocated</th><th class="num">Leaked</th><th>Trend</th></tr></thead>
          <tbody>{pools.slice(0, 500).map((p) => <Row key={keyOf(p)} pool={p} samples={data!.samples.get(keyOf(p)) ?? []} />)}</tbody>
        </table></div>}
        {pools.length > 500 && <p class="small muted">The 500 fullest of {pools.length.toLocaleString('en-US')} pools are shown.</p>}
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

function Row({ pool: p, samples }: { pool: Pool; samples: number[] }) {
  const used = share(p)
  const tone = used === undefined ? '' : used >= 0.9 ? 'bad' : used >= 0.75 ? 'warn' : ''
  const grown = samples.length > 1 ? samples.at(-1)! - samples[0]! : 0
  return (
    <tr>
      <td><Badge state={p.state} /></td>
      <td>{p.ipam}</td>
      <td class="mono wrap">{p.name}{p.ranges.length > 0 && <div class="small muted">{p.ranges.slice(0, 3).map((r) => <a href={to('address', '', { q: r.includes('/') ? r : r.split('-')[0]! })}>{r}</a>)}</div>}</td>
      <td>{p.node ? <a href={to('map', p.node)}>{p.node}</a> : 'cluster'}</td>
      <td class="use">{used === undefined ? <span class="muted">size unknown</span> : <><meter class={tone} min={0} max={1} value={used} aria-label={`${Math.round(used * 100)} % of ${p.name} allocated`} /> <span>{used < 0.01 && used > 0 ? '<1' : Math.round(used * 100)} %</span></>}</td>
      <td class="num">{Number(p.allocated).toLocaleString('en-US')}{Number(p.size) > 0 && <span class="muted"> / {Number(p.size).toLocaleString('en-US')}</span>}</td>
      <td class="num">{Number(p.leaked) || '–'}</td>
      <td class="trend">{p.exhaustedIn ? <b class="bad-text">full in {duration(fromDuration(p.exhaustedIn))}</b> : 'not growing'}{grown !== 0 && <span class="muted"> · {grown > 0 ? '+' : '−'}{Math.abs(grown)} since you opened this page</span>}</td>
    </tr>
  )
}
