// What surrounds each view: the header, the state of the connection, log-in and help.
import { useEffect, useRef, useState } from 'preact/hooks'
import { signal } from '@preact/signals'
import { loginReason, token, useToken } from '../api'
import { caughtUp, connection, findingsConnection, findingsKnown, nodes, nodesConnection, type Connection } from '../live'
import { full, local, now, duration, short, toggleZone, zone } from '../time'
import { go, route, to } from '../route'
import { isAddress } from '../search'

const themeKey = 'ipwitness.theme'
const themes = ['auto', 'light', 'dark'] as const
const theme = signal(localStorage.getItem(themeKey) ?? 'auto')
theme.subscribe((t) => {
  if (t === 'auto') delete document.documentElement.dataset.theme
  else document.documentElement.dataset.theme = t
})

function nextTheme() {
  theme.value = themes[(themes.indexOf(theme.value as (typeof themes)[number]) + 1) % themes.length]!
  localStorage.setItem(themeKey, theme.value)
}

export const helpOpen = signal(false)

const views = [['', 'Now'], ['address', 'Address'], ['map', 'Map'], ['ipam', 'IPAM']] as const

export function Header() {
  const view = route.value.view === 'conflict' || route.value.view === 'finding' || route.value.view === 'now' ? '' : route.value.view
  return (
    <header class="top">
      <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.querySelector<HTMLElement>('main')?.focus() }}>Skip to content</a>
      <a class="brand" href="#/">ipwitness</a>
      <nav aria-label="Views">{views.map(([v, name]) => <a href={to(v)} aria-current={v === view ? 'page' : undefined}>{name}</a>)}</nav>
      <SearchBox />
      <State />
      <span class="controls">
        <button type="button" onClick={toggleZone} title={`Times are in ${zone.value}. Click for ${local.value ? 'UTC' : 'local time'}.`}>{local.value ? zone.value : 'UTC'}</button>
        <button type="button" onClick={nextTheme} aria-label={`Colours: ${theme.value}`} title={`Colours: ${theme.value}`}><span aria-hidden="true">{{ auto: '◑', light: '☀', dark: '☾' }[theme.value as (typeof themes)[number]]}</span></button>
        <button type="button" onClick={() => (helpOpen.value = true)} aria-label="Keyboard and help" title="Keyboard and help (?)">?</button>
        {token.value && <button type="button" onClick={() => useToken('')}>Log out</button>}
      </span>
    </header>
  )
}

function SearchBox() {
  const { view, subject, query } = route.value
  const shown = view === 'address' ? subject || (query.get('q') ?? '') : ''
  const [text, setText] = useState(shown)
  useEffect(() => setText(shown), [shown])
  const submit = (event: SubmitEvent) => {
    event.preventDefault()
    const q = text.trim()
    go(isAddress(q) ? to('address', q) : to('address', '', { q }))
  }
  return (
    <form role="search" onSubmit={submit}>
      <input id="search" type="search" autocomplete="off" spellcheck={false} value={text} onInput={(e) => setText(e.currentTarget.value)}
        placeholder="Address, CIDR, MAC, ID, node, part of a name" aria-label="Search by address, CIDR, MAC, ID, node, or part of a name" />
    </form>
  )
}

function State() {
  const c = connection.value
  const text = { live: 'live', connecting: 'connecting', lost: `disconnected for ${duration(now.value - c.since)}` }[c.state]
  return <span class={`connection ${c.state}`} data-connection={c.state} role="status" title={c.why}><span aria-hidden="true">{{ live: '●', connecting: '◌', lost: '✖' }[c.state]}</span> {text}</span>
}

/** Says that what is shown is not current, or what has happened meanwhile. */
export function Notices() {
  const c = connection.value
  if (c.state === 'lost' && !loginReason.value) return <p class="banner bad" role="alert"><b>Disconnected: {c.why}.</b> This page shows the state of {short(c.since)} {zone.value}, and reconnects by itself.</p>
  return (
    <>
      <Outdated what="Findings" known={findingsKnown.value} connection={findingsConnection.value} />
      <Outdated what="Nodes" known={nodes.value !== undefined} connection={nodesConnection.value} />
      {caughtUp.value && <p class="banner info" role="status" data-caught-up>{caughtUp.value} <button type="button" onClick={() => (caughtUp.value = '')}>OK</button></p>}
    </>
  )
}

/** Says that one part of the page is not current, although the conflicts are. */
function Outdated({ what, known, connection: c }: { what: string; known: boolean; connection: Connection }) {
  if (c.state !== 'lost' || loginReason.value) return null
  return <p class="banner warn" role="alert" data-outdated={what}><b>{what} cannot be read: {c.why}.</b> {known ? `This page shows those of ${short(c.since)} ${zone.value}` : 'This page shows none'}, and tries again by itself.</p>
}

export function Login() {
  const [text, setText] = useState('')
  const submit = (event: SubmitEvent) => {
    event.preventDefault()
    if (text.trim()) useToken(text.trim())
  }
  return (
    <form class="card login" onSubmit={submit} aria-label="Log in">
      <h1>Log in</h1>
      <p class="wrap">The server says: {loginReason.value}</p>
      <label for="token">Bearer token</label>
      <input id="token" type="password" autocomplete="off" spellcheck={false} value={text} onInput={(e) => setText(e.currentTarget.value)} autofocus />
      <button type="submit" class="primary">Log in</button>
      <p class="small muted">A token of the aggregator's <code>--tokens</code> file, or one of Kubernetes: <code>kubectl create token ipwitness-reader --namespace ipwitness --audience ipwitness</code>. It stays in this tab, and is forgotten when the tab is closed. With <code>kubectl ipwitness ui</code> no token is needed here.</p>
    </form>
  )
}

export const keys = [
  ['/', 'search'], ['j, k', 'next and previous card or row'], ['Enter', 'open the selected row'], ['n, a, m, i', 'Now, Address, Map, IPAM'],
  ['t', 'UTC or local time'], ['?', 'this help'], ['Esc', 'close, or leave the search'],
] as const

export function Help() {
  const dialog = useRef<HTMLDialogElement>(null)
  useEffect(() => {
    if (helpOpen.value) dialog.current?.showModal()
    else dialog.current?.close()
  }, [helpOpen.value])
  return (
    <dialog ref={dialog} onClose={() => (helpOpen.value = false)} aria-label="Keyboard and help">
      <h2>Keyboard</h2>
      <dl class="keys">{keys.map(([key, what]) => <><dt><kbd>{key}</kbd></dt><dd>{what}</dd></>)}</dl>
      <h2>Signs</h2>
      <p>✖ confirmed or disconnected · ◐ suspected or stale · ✔ resolved or live · ▲ critical · ◆ warning · ◌ not seen</p>
      <p class="small muted">Times are in {zone.value}; it is {full(now.value)}.</p>
      <form method="dialog"><button class="primary">Close</button></form>
    </dialog>
  )
}
