import { render } from 'preact'
import { useEffect } from 'preact/hooks'
import './style.css'
import { loginReason } from './api'
import { active, start } from './live'
import { Header, Help, helpOpen, Login, Notices } from './parts/frame'
import { go, route, to } from './route'
import { toggleZone } from './time'
import { Address } from './views/address'
import { Ipam } from './views/ipam'
import { Map_ } from './views/map'
import { Now } from './views/now'

function View() {
  switch (route.value.view) {
    case 'address': return <Address />
    case 'map': return <Map_ />
    case 'ipam': return <Ipam />
    default: return <Now />
  }
}

function Page() {
  const held = new Set(active.value.filter((c) => !c.acknowledgement).map((c) => c.address)).size
  useEffect(() => {
    document.title = `${held ? `(${held}) ` : ''}ipwitness`
  }, [held])
  return (
    <>
      <Header />
      <main id="main" tabIndex={-1}>
        <Notices />
        {loginReason.value ? <Login /> : <View />}
      </main>
      <Help />
    </>
  )
}

/** Moves the focus to the next or previous row or card. */
function step(by: number) {
  const cards = [...document.querySelectorAll<HTMLElement>('main article.card, main .fold')]
  const at = cards.findLastIndex((c) => c.contains(document.activeElement))
  const next = cards[Math.max(0, Math.min(cards.length - 1, at + by))]
  next?.focus()
  next?.scrollIntoView({ block: 'nearest' })
}

const shortcuts: Record<string, () => void> = {
  '/': () => document.querySelector<HTMLInputElement>('#search')?.focus(),
  '?': () => (helpOpen.value = true),
  j: () => step(1),
  k: () => step(-1),
  n: () => go(to('')),
  a: () => go(to('address')),
  m: () => go(to('map')),
  i: () => go(to('ipam')),
  t: toggleZone,
}

addEventListener('keydown', (event) => {
  const field = event.target instanceof HTMLElement && /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)
  if (event.key === 'Escape' && field) (event.target as HTMLElement).blur()
  // The dialog itself, because it tells helpOpen only after the next keys that it is closed.
  if (field || event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return
  const run = shortcuts[event.key]
  if (run) {
    event.preventDefault()
    run()
  }
})

start()
render(<Page />, document.getElementById('page')!)
